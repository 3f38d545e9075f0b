"""Plans for the time or the cost of reaching a target: a curve, batches, prices."""
