"""The first steps of a run, repeated as plain training in one process and compared."""
