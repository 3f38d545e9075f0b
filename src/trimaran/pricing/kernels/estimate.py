"""Time of a step on a catalog device, from the work of the step and the figures of the device.

    device time = the kernels back to back (`durations`)          host time = time to launch them (`host`)
    step        = (device^s + host^s)^(1/s)                       s: how far they overlap

A figure of the user corrects the curves: one measured step (`anchor_s`) scales the whole; several, or a profile, scale
kinds of kernels and the host separately (`corrections`). Left out: exchange with other devices, and waiting for data.

The error of a modelled step.

The error is taken as log-normal, of independent parts: of the device (architecture, clocks and cooling), of the network
(its shapes), and of the software. The size of each part is the error that is left when a device, a network or a
framework is kept out of the fit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.graph.kernels.workload import Work, WorkKind, Workload
from trimaran.graph.types import Phase
from trimaran.machine.types import Device
from trimaran.pricing.kernels.columns import Column, Kernels, kernels
from trimaran.pricing.kernels.corrections import Correction, MeasuredStep, step_seconds
from trimaran.pricing.kernels.device import Constants, constants, setting
from trimaran.pricing.kernels.durations import durations
from trimaran.pricing.kernels.frameworks import (
    framework_constant,
    host_durations,
    traffic,
    with_local_norms,
    with_optimizer,
)
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost

# ---------------------------------------------------------------------------------------------------------------------
# Estimated time of a step on a catalog device


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """One rank's step, with nothing to exchange and nothing to wait for.

    Attributes:
        work_s: for each work of the workload, its share of the step, start of its kernels included [s]
        forward: FP
        backward: BP
        update: WU on one device: the optimizer alone
        host_s: time of the host to launch all kernels; a step is no shorter [s]
        device_s: time of the device for its kernels, back to back [s]
        source: how it was found, such as "modelled" or "one measured figure, divided as modelled"
    """

    work_s: tuple[float, ...]
    forward: Cost
    backward: Cost
    update: Cost
    host_s: float
    device_s: float
    source: str

    @property
    def seconds(self) -> float:
        """The whole step [s]."""
        return self.forward.seconds + self.backward.seconds + self.update.seconds

    @property
    def launch_bound(self) -> bool:
        """Whether the host cannot keep the device busy."""
        return self.host_s > self.device_s


def step_spread(workload: Workload, device: Device, software: Software, table: Constants) -> float:
    """Standard deviation of the logarithm of a modelled step."""
    known = f"architecture.{device.architecture}.vector" in table
    parts = (
        table["spread.device" if known else "spread.unknown_device"],
        table["spread.network"],
        table["spread.software" if f"host.{software.framework}" in table else "spread.unknown_software"],
    )
    return math.sqrt(sum(part * part for part in parts))


def estimate_step(
    workload: Workload,
    device: Device,
    software: Software,
    *,
    anchor_s: float | None = None,
    correction: Correction | None = None,
) -> StepEstimate:
    """Estimated time of a step on one device.

    Args:
        workload: the step
        device: of the catalog
        software: framework and libraries
        anchor_s: this very step, measured on one such device: everything is scaled to it [s]
        correction: of the curves, from a profile or from steps that were measured

    Raises:
        InputError: the anchor is not a positive time
    """
    if anchor_s is not None and not (anchor_s > 0 and math.isfinite(anchor_s)):
        raise InputError(
            f"a measured step must be a positive time in seconds, got {anchor_s!r}",
            code="estimate.bad-anchor",
            anchor_s=anchor_s,
        )
    table = constants()
    distinct, place = _distinct(with_local_norms(workload.works, software))
    columns = kernels(distinct)
    device_s, host_s = (part[place] for part in parts(columns, workload, device, software, table))
    source = "modelled"
    if correction is not None:
        device_s, host_s = device_s * correction.of_kinds(columns.kind[place]), host_s * correction.host
        source = f"modelled, corrected by {correction.source}"
    share = _shares(device_s, host_s, framework_constant("overlap", software, table))
    spread = correction.spread if correction is not None else step_spread(workload, device, software, table)
    if anchor_s is not None:
        factor = anchor_s / float(share.sum())
        device_s, host_s, share = device_s * factor, host_s * factor, share * factor
        source, spread = "one measured figure, divided as modelled", table["spread.anchor"]
    return _estimate(workload, share, float(device_s.sum()), float(host_s.sum()), spread, source)


def parts(
    columns: Kernels, workload: Workload, device: Device, software: Software, table: Constants
) -> tuple[Column, Column]:
    """Device time and host time of each work [s]."""
    columns = with_optimizer(columns, software)
    on = setting(columns, device, software, workload.precision)
    device_s = durations(columns, on, table)
    device_s = device_s * traffic(columns, software, table)
    return device_s, host_durations(columns, software, table)


def _distinct(works: Sequence[Work]) -> tuple[list[Work], list[int]]:
    """Works of different cost, and for each work the position of its equal: networks repeat themselves."""
    found: list[Work] = []
    places: dict[tuple[object, ...], int] = {}
    place = []
    for work in works:
        key = (work.kind, work.gradient, work.name, work.dtype, work.flops, work.nbytes, work.dims, work.launches)
        number = places.setdefault(key, len(found))
        if number == len(found):
            found.append(work)
        place.append(number)
    return found, place


def measured_step(workload: Workload, device: Device, software: Software, seconds: float) -> MeasuredStep:
    """A measured step with its modelled parts, for `correction_from_steps`.

    Args:
        workload: the step
        device: it ran on
        software: it ran with
        seconds: it took [s]
    """
    modelled = estimate_step(workload, device, software)
    overlap = framework_constant("overlap", software, constants())
    return MeasuredStep(seconds=seconds, device_s=modelled.device_s, host_s=modelled.host_s, overlap=overlap)


def kind_seconds(workload: Workload, estimate: StepEstimate) -> dict[WorkKind, float]:
    """The kernels' time of a step by kind, for `correction_from_profile` [s]."""
    found: dict[WorkKind, float] = {}
    scale = estimate.device_s / max(estimate.seconds, 1e-12)
    for work, seconds in zip(workload.works, estimate.work_s, strict=True):
        found[work.kind] = found.get(work.kind, 0.0) + seconds * scale
    return found


def _shares(device_s: Column, host_s: Column, overlap: float) -> Column:
    """Each work's part of the step: its device time, and the wait for the host that its launches cause."""
    device, host = float(device_s.sum()), float(host_s.sum())
    step = step_seconds(device, host, overlap)
    if host <= 0:
        return device_s * (step / device) if device > 0 else device_s
    return device_s + host_s * ((step - device) / host)


def _estimate(
    workload: Workload, share: Column, device_s: float, host_s: float, spread: float, source: str
) -> StepEstimate:
    sums: Mapping[Phase, float] = {
        phase: math.fsum(float(s) for s, work in zip(share, workload.works, strict=True) if work.phase is phase)
        for phase in Phase
    }
    wide = math.exp(1.645 * spread)

    def cost(phase: Phase) -> Cost:
        return Cost(sums[phase], sums[phase] / wide, sums[phase] * wide, f"analytic: {source}")

    return StepEstimate(
        work_s=tuple(float(s) for s in share),
        forward=cost(Phase.FORWARD),
        backward=cost(Phase.BACKWARD),
        update=cost(Phase.UPDATE),
        host_s=host_s,
        device_s=device_s,
        source=source,
    )
