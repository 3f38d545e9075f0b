"""Runs compared with their predictions: comparison, tables, traces and files."""
