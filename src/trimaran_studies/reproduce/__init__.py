"""Published experiments of the four systems, run again under their policies and ours."""
