"""Costs of compute, transfers and memory, each with an interval and a source."""
