"""The training data of a rank: in which order, who loads what, how far ahead, and what that took."""
