"""What a user brings, handled with care: the model, what it holds, the data and their batches, what draws at random."""
