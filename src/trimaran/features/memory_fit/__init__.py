"""What a job's step needs on a device, and what a plan of its memory makes of it, before any run."""

from trimaran.features.memory_fit.estimate import MemoryStudy, estimate_memory

__all__ = ["MemoryStudy", "estimate_memory"]
