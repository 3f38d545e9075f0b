"""From the trace of a step to what the step asks of a device, and from two of these to any batch."""
