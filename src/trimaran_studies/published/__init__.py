"""Published measurements as rows, with their sources."""
