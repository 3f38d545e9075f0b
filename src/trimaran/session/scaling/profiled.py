"""A person's own profile of one device as a correction of modelled kernels."""

from pathlib import Path

from trimaran.costs.operations.corrections import Correction, correction_from_profile
from trimaran.costs.operations.estimate import kind_seconds
from trimaran.costs.operations.profiles import read_kineto
from trimaran.costs.operations.types import StepEstimate
from trimaran.graph.workload import Workload


def profile_correction(path: Path, work: Workload, estimate: StepEstimate) -> Correction:
    """Factors with which the model gives what a profile of PyTorch shows.

    Args:
        path: of the trace
        work: the step that was profiled
        estimate: of it, as modelled

    Raises:
        InputError: the trace cannot be read, or is not of such a step
    """
    return correction_from_profile(read_kineto(path), kind_seconds(work, estimate), estimate.host_s)
