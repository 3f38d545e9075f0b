"""Published measurements, understood as set-ups of ours, predicted, and compared."""
