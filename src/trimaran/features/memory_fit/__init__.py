"""Memory of a job's step on a device, and its memory plan, before any run."""

from trimaran.features.memory_fit.estimate import MemoryStudy, estimate_memory

__all__ = ["MemoryStudy", "estimate_memory"]
