"""Plans by the analytical model: which degrees a transformer on many devices should have, without a trace."""
