"""A person's own profile of one device, or figures of several batches, as a correction of modelled kernels."""

from collections.abc import Sequence
from pathlib import Path

from trimaran.cluster.catalog_types import CatalogDevice
from trimaran.costs.operations.corrections import Correction, correction_from_profile, correction_from_steps
from trimaran.costs.operations.estimate import kind_seconds, measured_step
from trimaran.costs.operations.profiles import read_kineto
from trimaran.costs.operations.types import StepEstimate
from trimaran.costs.software import Software
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


def figures_correction(
    measured: Sequence[tuple[Workload, float]], device: CatalogDevice, software: Software
) -> Correction:
    """Factors of device and host with which the model comes closest to steps that were measured.

    Args:
        measured: steps of the job at different batches, and what each took [s]
        device: they ran on
        software: they ran with

    Raises:
        InputError: no step, or a time that is none
    """
    return correction_from_steps([measured_step(work, device, software, seconds) for work, seconds in measured])
