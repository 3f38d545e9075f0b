"""Processes of a run: their start, their world, their failures, the links between them."""
