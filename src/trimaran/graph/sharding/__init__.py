"""Finds what tensor-parallel ranks can share, from the dataflow graph alone."""
