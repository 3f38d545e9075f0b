"""The time of a step on a device that is not at hand."""
