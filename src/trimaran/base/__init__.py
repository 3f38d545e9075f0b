"""Errors, units, timelines and the job, which every room uses."""

VERSION = "0.1.0"
"""Of this package."""
