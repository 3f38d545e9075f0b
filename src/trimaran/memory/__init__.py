"""Plan the memory of a step: keep, offload or recompute each storage, under a peak that holds at every moment."""

from trimaran.memory.bound import DEFAULT_SMALLEST_BYTES, Bound, lower_bound
from trimaran.memory.floor import Floor, floor
from trimaran.memory.search import MemoryOutcome, plan_memory

__all__ = ["DEFAULT_SMALLEST_BYTES", "Bound", "Floor", "MemoryOutcome", "floor", "lower_bound", "plan_memory"]
