"""The commands `validate` and `reproduce`."""
