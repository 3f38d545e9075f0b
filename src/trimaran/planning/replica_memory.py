"""Memory of the ranks of a group: of one that is the owner of no tensor, and of the owner that sums the most."""

from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.graph.kernels.workload import Workload
from trimaran.machine.types import Device
from trimaran.planning.workloads import memory_of_step
from trimaran.pricing.exchange.replica_memory import replica_memory
from trimaran.pricing.exchange.step import ScaledStep
from trimaran.pricing.kernels.software import Software
from trimaran.program.gradients import owners_by_size

_DROPPED_SINCE = 2023.2
"""Since torch 2.0 `zero_grad` drops gradients; before, and in other frameworks, they stay from step to step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of the ranks of a group.

    Attributes:
        peak_bytes: of the rank that needs the most [bytes]
        own_peak_bytes: of a rank that owns nothing [bytes]
        card_bytes: total reported by a device's driver [bytes]
        fits: the rank with the most fits, with memory that no allocator counts
    """

    peak_bytes: int
    own_peak_bytes: int
    card_bytes: int
    fits: bool


def rank_memory(
    reference: str,
    work: Workload,
    step: ScaledStep,
    *,
    device: Device,
    software: Software,
    options: Mapping[str, str] | None,
) -> RankMemory:
    """Memory of the ranks of a group.

    Args:
        reference: of the job
        work: of each rank
        step: of each rank
        device: of each rank
        software: framework and year, which decides whether gradients stay
        options: of the job
    """
    memory = memory_of_step(reference, batch=work.batch, precision=work.precision, options=options)
    keeps = software.framework != "pytorch" or software.year < _DROPPED_SINCE

    def of(summed_bytes: int) -> tuple[int, int, bool]:
        found = replica_memory(
            memory,
            work.works,
            batch=work.batch,
            devices=step.devices,
            sync=step.sync,
            device=device,
            summed_bytes=summed_bytes,
            keeps_gradients=keeps,
        )
        return found.peak_bytes, found.card_bytes, found.fits

    own_peak_bytes, card_bytes, fits = of(0)
    peak_bytes = own_peak_bytes
    if step.sync == "kvstore" and step.devices > 1:
        peak_bytes, card_bytes, fits = of(_summed_at_most(work, step.devices))
    return RankMemory(peak_bytes=peak_bytes, own_peak_bytes=own_peak_bytes, card_bytes=card_bytes, fits=fits)


def _summed_at_most(work: Workload, devices: int) -> int:
    """Gradients of the owner with the most [bytes]."""
    nbytes = [gradient.nbytes for gradient in work.gradients]
    loads = dict.fromkeys(map(str, range(devices)), 0)
    for owner, size in zip(owners_by_size(nbytes, tuple(loads)), nbytes, strict=True):
        loads[owner] += size
    return max(loads.values())
