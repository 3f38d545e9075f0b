"""The device that a rehearsal pretends: what torch, a script and its packages find in place of a GPU."""
