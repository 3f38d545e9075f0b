"""How much training a job needs at a batch: real runs to a target, kept as they finish."""
