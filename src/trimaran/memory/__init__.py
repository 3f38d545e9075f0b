"""Plan the memory of a step: keep, offload or recompute each storage, under a peak that holds at every moment."""
