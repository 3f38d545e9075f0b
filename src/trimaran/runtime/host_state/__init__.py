"""Optimizer state that lives on the host and visits the device bucket by bucket, for the length of its update."""

from trimaran.runtime.host_state.streaming import HostState, stream_optimizer_state

__all__ = ["HostState", "stream_optimizer_state"]
