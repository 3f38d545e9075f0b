"""Run a program on real processes: ranks, segments, communication, data, weights, and a record of what happened."""
