"""From the trace of a step to what the step asks of a device, and from two of these to any batch."""

from trimaran.graph.kernels.convert import workload_of
from trimaran.graph.kernels.optimizer import Updates
from trimaran.graph.kernels.workload import AffineWorkload, affine
from trimaran.graph.trace.live_bytes import StepMemory, step_memory

__all__ = ["AffineWorkload", "StepMemory", "Updates", "affine", "step_memory", "workload_of"]
