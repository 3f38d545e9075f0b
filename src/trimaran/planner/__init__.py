"""Choose a strategy by simulation, and say why."""
