"""Strategies, instructions and programs: what was decided, and what each rank does."""
