"""Waits of a job's steps: run cold, cached and on synthetic data, and split by cause."""
