"""A training step on one rank: state, losses, backward in two halves, update."""
