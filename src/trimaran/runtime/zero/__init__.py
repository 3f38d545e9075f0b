"""Sharded state: parameters, gradients and optimizer state spread over the replicas."""
