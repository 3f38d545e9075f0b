"""Which device runs which operation of a network, in which order, and when tensors cross."""
