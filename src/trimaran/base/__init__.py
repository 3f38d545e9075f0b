"""Errors, units, timelines and the job, which every room uses."""
