"""The workload of any job at any batch: traced once without data or device, then read from disk."""

from trimaran.session.workloads.making import memory_of_step, workload

__all__ = ["memory_of_step", "workload"]
