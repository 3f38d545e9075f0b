"""Convergence: how much training each global batch needs to reach a target."""
