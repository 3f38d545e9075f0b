"""What one rank holds of the model: segments, replicas, stages."""
