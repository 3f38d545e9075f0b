"""The simulated device of a rehearsal: what torch, a script and its packages find in place of a GPU."""
