"""Plan the memory of a step: keep, offload or recompute each storage, under a peak that holds at every moment."""

from trimaran.memory.bound import DEFAULT_SMALLEST_BYTES, Bound, lower_bound
from trimaran.memory.minimum import MinimumMemory, minimum_memory
from trimaran.memory.search import MemoryOutcome, plan_memory

__all__ = [
    "DEFAULT_SMALLEST_BYTES",
    "Bound",
    "MemoryOutcome",
    "MinimumMemory",
    "lower_bound",
    "minimum_memory",
    "plan_memory",
]
