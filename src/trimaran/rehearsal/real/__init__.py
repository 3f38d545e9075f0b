"""A script run for real on the CPU, as some ranks and as one process."""
