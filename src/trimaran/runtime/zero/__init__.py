"""Sharded state: parameters, gradients and optimizer state spread over the replicas."""

from trimaran.runtime.zero.part import share_update, zero_part

__all__ = ["share_update", "zero_part"]
