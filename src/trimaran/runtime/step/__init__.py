"""A training step on one rank: state, losses, dgrad and wgrad, update."""
