"""Time of a step on a catalog device, from the work of the step and the figures of the device.

    device time = the kernels back to back (`durations`)          host time = time to launch them
    step        = (device^s + host^s)^(1/s)                       s: how far they overlap

A figure of the user corrects the curves: one measured step (`anchor_s`) scales the whole; several, or a profile, scale
kinds of kernels and the host separately (`corrections`). Left out: exchange with other devices, and waiting for data.

The error of a modelled step.

The error is taken as log-normal, of independent parts: of the device (architecture, clocks and cooling), of the network
(its shapes), and of the software. The size of each part is the error that is left when a device, a network or a
framework is kept out of the fit.

Costs that a framework adds to a step: the host's work for each kernel, and memory traffic that others save.

A host launches kernels one after another, ahead of the device where it can. It is the limit of a step of many small
kernels: those of LeNet on any card of the last ten years, of ResNet-50 at small batches on a fast one. How long a
launch takes depends on the framework's work for it: interpret Python, look up and allocate, or replay a graph. How
far it runs ahead differs too (`overlap`): MXNet's engine waits for a device after each operator, so its time adds up.

Works are as PyTorch's operators are. A framework that has no kernel for layer norm, GELU or dropout makes them of many
operators, each of which reads and writes memory; a compiler (XLA, TorchInductor) saves most elementwise traffic.
Left out: the speed of the host's processor, which the published figures do not state.

Local response normalization as one kernel, as every framework but PyTorch has it.

A workload has PyTorch's operators, and PyTorch makes the layer of some seven that each read and write all of their
input, with twice as many in the backward. cuDNN's kernel reads its input and writes output and scale, and in the
backward reads those and the gradient and writes one. Their traffic and launches are shared out over the operators, so
that works stay one to one.

Source: Chetlur and others, "cuDNN", arXiv:1410.0759; apache/mxnet, src/operator/nn/lrn.cc; pytorch/pytorch,
torch/nn/functional.py, `local_response_norm`.

Form of an optimizer under a framework: a workload has that of PyTorch parameter by parameter.

    single    several kernels a parameter, each reads and writes memory        PyTorch before 1.13
    grouped   the same, lists of parameters a launch (`foreach`)               PyTorch since 1.13; Torch7's flat vectors
    fused     one kernel, each figure read and written once                    TensorFlow, MXNet, Apex

Source: pytorch/pytorch, torch/optim (`foreach` by default since 1.13); NVIDIA/apex, csrc/multi_tensor_*; tensorflow,
core/kernels/training_ops; apache/mxnet, src/operator/optimizer_op.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy

from trimaran.base.errors import InputError
from trimaran.graph.kernels.workload import Work, WorkKind, Workload
from trimaran.graph.types import Phase
from trimaran.machine.types import Device
from trimaran.pricing.kernels.columns import ELEMENT_BYTES, MATRIX_KINDS, Column, Kernels, kernels
from trimaran.pricing.kernels.constants import Constants, constants
from trimaran.pricing.kernels.corrections import Correction, MeasuredStep, step_seconds
from trimaran.pricing.kernels.durations import durations, rounded_kinds, setting
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost, IntervalEnd

# ---------------------------------------------------------------------------------------------------------------------
# What a framework adds to a step


_HEAVY = [kind.value for kind in (*MATRIX_KINDS, WorkKind.RECURRENT)]


def host_durations(kernels: Kernels, software: Software, constants: Constants) -> Column:
    """Time of the host for each work of a step [s]."""
    per_launch = framework_constant("host", software, constants)
    if software.compiled:
        per_launch *= constants["host.compiled"]
    busy = (kernels.flops > 0) | (kernels.nbytes > 0)
    return numpy.where(busy, per_launch * kernels.launches, 0.0)


def traffic(kernels: Kernels, software: Software, constants: Constants) -> Column:
    """By how much longer each work takes under a framework than its own bytes do, 1 where it is bound by computing."""
    light = numpy.full(len(kernels), framework_constant("traffic", software, constants))
    composite = framework_constant("composite", software, constants)
    if software.compiled:
        light = light * constants["traffic.compiled"]
        composite = 1.0
    if software.channels_last:
        half = numpy.isin(kernels.dtype, ["float16", "bfloat16"])
        light = numpy.where(half, light * constants["traffic.channels_last"], light)
    factor = numpy.where(kernels.composite, light * composite, light)
    return numpy.where(numpy.isin(kernels.kind, _HEAVY), 1.0, factor)


def framework_constant(figure: str, software: Software, constants: Constants) -> float:
    """A constant of a framework, or that of others where it has none."""
    return constants.get(f"{figure}.{software.framework}", constants[f"{figure}.other"])


PASSES = {Phase.FORWARD: 3, Phase.BACKWARD: 5}
"""How many tensors as large as the input a kernel reads and writes."""

_MARK = "aten.avg_pool3d"
"""Averages over channels: in the networks of the field only this layer takes them."""


def with_local_norms(works: Sequence[Work], software: Software) -> Sequence[Work]:
    """The works as a framework runs them."""
    sizes = {work.module: max(work.dims) for work in works if work.name == _MARK and work.phase is Phase.FORWARD}
    if software.framework == "pytorch" or not sizes:
        return works
    totals: dict[tuple[str, Phase], int] = {}
    for work in works:
        if work.module in sizes:
            totals[work.module, work.phase] = totals.get((work.module, work.phase), 0) + work.nbytes
    return [_shared(work, sizes[work.module], totals) if work.module in sizes else work for work in works]


def _shared(work: Work, elements: int, totals: dict[tuple[str, Phase], int]) -> Work:
    total = totals[work.module, work.phase]
    if work.phase not in PASSES or total <= 0:
        return work
    fused = PASSES[work.phase] * elements * ELEMENT_BYTES.get(work.dtype, 4)
    share = min(1.0, fused / total)
    first = work.name in (_MARK, f"{_MARK}_backward")
    return replace(work, nbytes=round(work.nbytes * share), launches=1 if first else 0)


Form = Literal["single", "grouped", "fused"]

FUSED_BYTES = {"SGD": 20.0}
"""Bytes of an element: read parameter, gradient and momentum, write parameter and momentum."""

_ADAPTIVE_BYTES = 28.0
"""The same with two moments."""

_TENSORS_OF_A_LAUNCH = 30.0
"""Tensors of a list that one launch takes."""

_FOREACH_YEAR = 2022.8


def optimizer_form(software: Software) -> Form:
    """The form that a framework's optimizers have.

    Example:
        >>> optimizer_form(Software(year=2020.5)), optimizer_form(Software(framework="mxnet"))
        ('single', 'fused')
    """
    if software.framework == "torch7":
        return "grouped"
    if software.framework != "pytorch" or "apex" in software.libraries.lower() or software.compiled:
        return "fused"
    return "grouped" if software.year >= _FOREACH_YEAR else "single"


def with_optimizer(kernels: Kernels, software: Software) -> Kernels:
    """The kernels of a step with the optimizer in the form that a framework gives it."""
    form = optimizer_form(software)
    chosen = kernels.kind == WorkKind.OPTIMIZER.value
    if form == "single" or not chosen.any():
        return kernels
    launches, nbytes = kernels.launches.copy(), kernels.nbytes.copy()
    if form == "fused":
        fewest = numpy.array([FUSED_BYTES.get(str(name), _ADAPTIVE_BYTES) for name in kernels.name[chosen]])
        nbytes[chosen] = numpy.minimum(nbytes[chosen], fewest * kernels.elements[chosen])
        launches[chosen] = 1.0
    if form == "grouped" or software.framework == "pytorch":
        launches[chosen] = launches[chosen] / _TENSORS_OF_A_LAUNCH
    return replace(kernels, launches=launches, nbytes=nbytes)


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

    def at(self, end: IntervalEnd) -> "StepEstimate":
        """The same with its phases at an end of their intervals."""
        return replace(self, forward=self.forward.at(end), backward=self.backward.at(end), update=self.update.at(end))

    @property
    def launch_bound(self) -> bool:
        """Whether the host cannot keep the device busy."""
        return self.host_s > self.device_s


def step_spread(device: Device, software: Software, table: Constants) -> float:
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
    spread = correction.spread if correction is not None else step_spread(device, software, table)
    if anchor_s is not None:
        factor = anchor_s / float(share.sum())
        device_s, host_s, share = device_s * factor, host_s * factor, share * factor
        source, spread = "one measured figure, divided as modelled", table["spread.anchor"]
    return _estimate(workload, share, float(device_s.sum()), float(host_s.sum()), spread, source)


def parts(
    columns: Kernels, workload: Workload, device: Device, software: Software, table: Constants
) -> tuple[Column, Column]:
    """Device time and host time of each work [s]."""
    return _as_asked(with_optimizer(columns, software), device, software, workload.precision, table)


def seconds_alone(
    works: Sequence[Work], device: Device, software: Software, *, precision: str = "fp32"
) -> tuple[Column, Column]:
    """Device time and host time of works by themselves, launched as a script launched them [s].

    What `estimate_step` takes a step together from, before the shorter of the two overlaps with the longer.

    Args:
        works: each as a script asked for it, an optimizer's lists of tensors included
        device: of the catalog
        software: framework and libraries
        precision: says which products in fp32 are rounded to tf32 (`rounded_kinds`)
    """
    return _as_asked(kernels(works), device, software, precision, constants(), gapless=True)


def _as_asked(
    columns: Kernels, device: Device, software: Software, precision: str, table: Constants, *, gapless: bool = False
) -> tuple[Column, Column]:
    seconds = durations(columns, setting(columns, device, software, precision, gapless=gapless), table)
    if precision == "fp32" and rounded_kinds(device, software, precision):
        # What may be rounded need not be: a library takes what is faster.
        seconds = numpy.minimum(seconds, durations(columns, setting(columns, device, software, "ieee"), table))
    return seconds * traffic(columns, software, table), host_durations(columns, software, table)


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
