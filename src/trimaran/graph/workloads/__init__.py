"""From the trace of a step to what the step asks of a device, and from two of these to any batch."""

from trimaran.graph.workloads.affine import AffineWorkload, affine
from trimaran.graph.workloads.convert import workload_of
from trimaran.graph.workloads.memory import StepMemory, step_memory
from trimaran.graph.workloads.updates import Updates

__all__ = ["AffineWorkload", "StepMemory", "Updates", "affine", "step_memory", "workload_of"]
