"""How much training a job needs at each batch, measured on this machine."""
