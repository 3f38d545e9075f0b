"""What stands behind `virtual_memory`: hooks, batches, steps, plans, and the report."""
