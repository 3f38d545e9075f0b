"""A scaling study: one job on many set-ups of a machine, from its workload alone.

    workload at each batch ─▶ step on one device ─▶ exchange on each group ─▶ rows ─▶ advice

A step is estimated once a batch; what a group adds is simulated for each of its sizes and methods.

What change of a network, or of how it is trained, would help, with what each is expected to gain.

Each proposal is a changed workload put through the same simulation: nothing is proposed by a rule of thumb alone. They
are tried on the largest group of each batch and method. Left out: whether the changed network learns as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from trimaran.base.errors import InputError
from trimaran.base.precision import Precision
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.remedies import Method, Remedy
from trimaran.base.units import format_count, format_seconds
from trimaran.graph.kernels.workload import WeightGradient, WorkKind, Workload
from trimaran.graph.types import Phase
from trimaran.machine.find import find_machine
from trimaran.machine.types import Device, Machine
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.precision import choose_precision
from trimaran.planning.requests import default_software, parse_figures
from trimaran.pricing.collectives.corrections import corrected_by, read_logs
from trimaran.pricing.exchange.costs import ExchangeOptions
from trimaran.pricing.exchange.step import ScaledStep, Sync
from trimaran.pricing.kernels.corrections import Correction, correction_from_profile, correction_from_steps, read_kineto
from trimaran.pricing.kernels.estimate import StepEstimate, estimate_step, kind_seconds, measured_step
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost
from trimaran.report.scaling import Mode, ScalingRow, ScalingStudy
from trimaran.simulator.data_parallel import data_parallel_step

Known = Callable[[int], tuple[Workload, StepEstimate]]
StepOf = Callable[[Workload, StepEstimate, ScalingRow], Cost]

_WORTH = 0.02
_SMALL_BYTES = 64 * 1024
_LARGE_SHARE = 0.15
_TINY = (WorkKind.ELEMENTWISE, WorkKind.NORMALIZATION, WorkKind.POOLING, WorkKind.COPY, WorkKind.REDUCTION)


def advise(rows: Sequence[ScalingRow], known: Known, step_of: StepOf) -> tuple[Remedy, ...]:
    """Remedies that give at least two per cent more throughput, the largest gain first.

    Args:
        rows: of the study
        known: workload and estimate at a batch
        step_of: a step of a changed workload in a row's set-up [s]
    """
    found: list[Remedy] = []
    for row in _largest(rows):
        work, estimate = known(row.step.local_batch)
        found += _splitting(row, work, estimate, step_of)
        found += _shrinking(row, work, estimate, step_of)
        found += _joining(row, work, estimate, step_of)
        found += _merging(row, work, estimate)
        found += _enlarging(row, known, step_of)
    least = 1 - 1 / (1 + _WORTH)
    worth = [remedy for remedy in found if remedy.predicted_gain >= least]
    return tuple(sorted(worth, key=lambda remedy: -remedy.predicted_gain))


def _largest(rows: Sequence[ScalingRow]) -> list[ScalingRow]:
    """The largest group of each batch and method."""
    found: dict[tuple[int, str], ScalingRow] = {}
    for row in rows:
        key = (row.step.local_batch, row.step.sync)
        if key not in found or found[key].step.devices < row.step.devices:
            found[key] = row
    return [row for row in found.values() if row.step.devices > 1]


def _splitting(row: ScalingRow, work: Workload, estimate: StepEstimate, step_of: StepOf) -> list[Remedy]:
    """A tensor that has one owner, split into one for each device."""
    large = [gradient for gradient in work.gradients if gradient.nbytes > _LARGE_SHARE * work.gradient_bytes]
    if row.step.sync != "kvstore" or not large:
        return []
    parts = row.step.devices
    gradients: list[WeightGradient] = []
    for gradient in work.gradients:
        if gradient in large:
            part = replace(gradient, nbytes=gradient.nbytes // parts, elements=gradient.elements // parts)
            gradients += [part] * parts
        else:
            gradients.append(gradient)
    names = _named(large)
    return [
        Remedy(
            id="split-tensor",
            limiter="communication",
            name=f"split {names} into {parts} tensors",
            action=f"Split {names} into {parts} tensors: each has one owner, whose links carry all of it.",
            setting={"parts": parts},
            **_simulated(row, step_of(replace(work, gradients=tuple(gradients)), estimate, row)),
        )
    ]


def _shrinking(row: ScalingRow, work: Workload, estimate: StepEstimate, step_of: StepOf) -> list[Remedy]:
    """The layer whose gradients are waited for the longest, with a quarter of its weights."""
    if not row.step.exposed:
        return []
    layer = row.step.exposed[0]
    gradients = tuple(
        replace(gradient, nbytes=gradient.nbytes // 4) if gradient.module == layer.module else gradient
        for gradient in work.gradients
    )
    return [
        Remedy(
            id="smaller-layer",
            limiter="communication",
            name=f"a quarter of the weights in {layer.module}",
            action=(
                f"Give {layer.module} a quarter of its weights (a narrower layer, two factors, pooling before it): "
                "its gradients do not overlap with the backward."
            ),
            assumption="the smaller network learns as well.",
            **_simulated(row, step_of(replace(work, gradients=gradients), estimate, row)),
        )
    ]


def _joining(row: ScalingRow, work: Workload, estimate: StepEstimate, step_of: StepOf) -> list[Remedy]:
    """Small tensors exchanged as one."""
    small = [gradient for gradient in work.gradients if gradient.nbytes < _SMALL_BYTES]
    if len(small) < 8:
        return []
    last = max(small, key=lambda gradient: gradient.work)
    joined = replace(last, nbytes=sum(gradient.nbytes for gradient in small))
    gradients = tuple(gradient for gradient in work.gradients if gradient not in small)
    changed = replace(work, gradients=(*gradients, joined))
    return [
        Remedy(
            id="join-tensors",
            limiter="communication",
            name=f"exchange {len(small)} small tensors as one",
            action=f"Exchange the {len(small)} tensors below 64 KiB as one: each is a call, whatever its size.",
            **_simulated(row, step_of(changed, estimate, row)),
        )
    ]


def _merging(row: ScalingRow, work: Workload, estimate: StepEstimate) -> list[Remedy]:
    """Tiny kernels merged into the ones before them, where the host cannot keep up."""
    launches = sum(item.launches for item in work.works if item.phase is not Phase.UPDATE)
    tiny = sum(item.launches for item in work.works if item.kind in _TINY and item.phase is not Phase.UPDATE)
    if not estimate.launch_bound or not launches:
        return []
    shorter_s = max(estimate.device_s, estimate.host_s * (1 - tiny / launches))
    saved_s = max(0.0, estimate.seconds - shorter_s)
    step = row.step.step
    seconds, low, high = (max(now_s - saved_s, 1e-9) for now_s in (step.seconds, step.low, step.high))
    then = Cost(seconds, low, high, step.source)
    return [
        Remedy(
            id="merge-kernels",
            limiter="launches",
            name=f"merge {tiny} small kernels",
            action=(
                f"Merge the {tiny} elementwise and normalization kernels of {launches} (compile, or larger layers): "
                "the host cannot launch kernels as fast as the device runs them."
            ),
            **_simulated(row, then, method="estimated"),
        )
    ]


def _enlarging(row: ScalingRow, known: Known, step_of: StepOf) -> list[Remedy]:
    """Twice the batch on each device."""
    work, estimate = known(2 * row.step.local_batch)
    return [
        Remedy(
            id="larger-batch",
            limiter=row.limiter,
            name=f"{work.batch} samples a device",
            action=(
                f"Train with {work.batch} samples a device instead of {row.step.local_batch}: the same exchange "
                "and the same launches for twice the samples."
            ),
            assumption="the larger batch fits, and needs no more epochs.",
            setting={"local_batch_size": work.batch},
            **_simulated(row, step_of(work, estimate, row), batches=2),
        )
    ]


class _Simulated(TypedDict):
    """What a changed step says of a remedy, as arguments of `Remedy`."""

    predicted_gain: float
    gain_interval: tuple[float, float]
    method: Method
    basis: str
    at: Mapping[str, int | str]


def _simulated(row: ScalingRow, step: Cost, *, batches: int = 1, method: Method = "re-simulated") -> _Simulated:
    """The gain of a changed step over that of a row, where all costs are at their median, low and high.

    Args:
        row: the set-up as it is
        step: of the changed workload [s]
        batches: of now that the changed step trains
        method: how the changed step was found
    """
    now = row.step.step
    pairs = ((now.seconds, step.seconds), (now.low, step.low), (now.high, step.high))
    spread = [1.0 - then_s / (batches * now_s) for now_s, then_s in pairs]
    figures = f"{format_seconds(now.seconds)} a step becomes {format_seconds(step.seconds)}"
    return {
        "predicted_gain": spread[0],
        "gain_interval": (min(spread), max(spread)),
        "method": method,
        "basis": figures + (f" for {batches} times the samples." if batches > 1 else "."),
        "at": {"devices": row.step.devices, "local_batch_size": row.step.local_batch, "sync": row.step.sync},
    }


def _named(gradients: Sequence[WeightGradient]) -> str:
    names = list(dict.fromkeys(gradient.name for gradient in gradients))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# ---------------------------------------------------------------------------------------------------------------------
# A person's own profile of one device, or figures of several batches, as a correction of modelled kernels


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


def figures_correction(measured: Sequence[tuple[Workload, float]], device: Device, software: Software) -> Correction:
    """Factors of device and host with which the model comes closest to steps that were measured.

    Args:
        measured: steps of the job at different batches, and what each took [s]
        device: they ran on
        software: they ran with

    Raises:
        InputError: no step, or a time that is none
    """
    return correction_from_steps([measured_step(work, device, software, seconds) for work, seconds in measured])


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRequest:
    """What is asked.

    Attributes:
        cluster: machine, such as "dgx1-v100" or "dgx-a100:512"
        devices: sizes of the group
        batches: of a device (weak) or of all devices (strong)
        syncs: methods of exchange
        mode: weak or strong
        precision: in which is computed; None: as `trimaran.planning.precision` chooses
        software: framework and year; None: what goes with the methods
        options: of the job
        measured: a figure of one device, such as "363 images/s", or several with their batches
        nccl_log: output of nccl-tests on the machine
        kineto: a trace of PyTorch's profiler of one device
        length_spread: of batches: standard deviation of their work by its mean
        notes: to be said with the answer
    """

    cluster: str
    devices: tuple[int, ...]
    batches: tuple[int, ...]
    syncs: tuple[Sync, ...] = ("nccl",)
    mode: Mode = "weak"
    precision: str | None = None
    software: Software | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    measured: str | None = None
    nccl_log: Path | None = None
    kineto: Path | None = None
    length_spread: float = 0.0
    notes: tuple[str, ...] = ()


def study(reference: str, request: StudyRequest, *, progress: Progress = ignore_progress) -> ScalingStudy:
    """Every set-up that is asked for.

    Args:
        reference: of the job, such as "inception_v3"
        request: what is asked
        progress: told what is being done

    Raises:
        InputError: an unknown job, machine or method, or more devices than there are
    """
    machine = find_machine(request.cluster)
    software = request.software or default_software(request.syncs)
    precision = choose_precision(reference, request.precision, machine.node.device)
    steps = Steps(reference, request, machine, software, precision.name)
    notes: list[str] = list(request.notes)
    rows: list[ScalingRow] = []
    for place, batch in enumerate(request.batches):
        progress(f"{reference}, batch {batch}", place, len(request.batches))
        for sync in request.syncs:
            rows += _rows(steps, batch, sync, notes)
    if not rows:
        raise InputError("; ".join(notes) or "nothing is asked for", cluster=request.cluster)
    return ScalingStudy(
        job=reference,
        cluster=request.cluster,
        device=machine.node.device.title,
        precision=precision.name,
        precision_source=precision.source,
        software=f"{software.framework} of {software.year:.0f}",
        mode=request.mode,
        unit="samples",
        rows=tuple(rows),
        advice=advise(rows, steps.job.known, steps.changed),
        notes=tuple(dict.fromkeys(notes)),
        source=steps.source,
    )


class Steps:
    """Steps of the job in groups, with what a person measured of it.

    Args:
        reference: of the job
        request: what is asked
        machine: nodes and fabric
        software: framework and year
        precision: in which is computed

    Attributes:
        job: its steps
        source: of the estimate that was made last
    """

    def __init__(
        self, reference: str, request: StudyRequest, machine: Machine, software: Software, precision: Precision
    ) -> None:
        links = None
        if request.nccl_log is not None:
            links = corrected_by(read_logs(request.nccl_log), machine=machine, year=software.year)
        self.job = DataParallelJob(
            reference=reference,
            machine=machine,
            precision=precision,
            software=software,
            options=request.options,
            exchange=ExchangeOptions(correction=links, length_spread=request.length_spread),
            estimator=self._estimate,
        )
        self.request = request
        self.source = ""
        self._correction: Correction | None = None

    def _estimate(self, work: Workload) -> StepEstimate:
        """A step of one device as modelled, and as the person's figures or profile correct that."""
        estimate = self._corrected(work)
        anchor_s = self._anchor_s(work, estimate)
        if anchor_s is not None:
            estimate = estimate_step(work, self.job.machine.node.device, self.job.software, anchor_s=anchor_s)
        self.source = estimate.source
        return estimate

    def _corrected(self, work: Workload) -> StepEstimate:
        """A step as modelled, and as several figures or a profile of the largest batch correct that."""
        device, software = self.job.machine.node.device, self.job.software
        figures = self._figures()
        if self._correction is None and len(figures) > 1:
            if self.request.kineto is not None:
                raise InputError("several measured figures and a profile correct the same: leave one of them out")
            known = [(self.job.workload(batch), batch / rate) for rate, batch in figures if batch]
            self._correction = figures_correction(known, device, software)
        if self._correction is None and self.request.kineto is not None:
            profiled = self.job.workload(max(self.request.batches))
            self._correction = profile_correction(
                self.request.kineto, profiled, estimate_step(profiled, device, software)
            )
        return estimate_step(work, device, software, correction=self._correction)

    def _figures(self) -> tuple[tuple[float, int | None], ...]:
        return () if self.request.measured is None else parse_figures(self.request.measured)

    def _anchor_s(self, work: Workload, estimate: StepEstimate) -> float | None:
        """A step as the person's one figure has it; at another batch, the model is off by the same factor [s]."""
        figures = self._figures()
        if len(figures) != 1:
            return None
        ((samples_per_s, at),) = figures
        base = at or max(self.request.batches)
        if base == work.batch:
            return base / samples_per_s
        modelled = self._corrected(self.job.workload(base))
        return estimate.seconds * base / samples_per_s / modelled.seconds

    def changed(self, work: Workload, estimate: StepEstimate, row: ScalingRow) -> Cost:
        """The step of a changed workload in the set-up of a row [s]."""
        setup = self.job.setup(row.step.local_batch, row.step.devices, sync=row.step.sync)
        options = replace(setup.options, explain=False)
        return data_parallel_step(replace(setup, workload=work, estimate=estimate, options=options)).step


def _rows(steps: Steps, batch: int, sync: Sync, notes: list[str]) -> list[ScalingRow]:
    """One batch and one method on every group."""
    strong = steps.request.mode == "strong"
    alone = steps.job.step(batch, 1, sync=sync)
    base = batch / alone.step.seconds
    rows = []
    for devices in steps.request.devices:
        share, rest = divmod(batch, devices) if strong else (batch, 0)
        if rest or not share:
            notes.append(
                f"a batch of {batch} has no equal shares for {format_count(devices, 'device')}: left out; take a "
                f"multiple of {devices}, or say --local-batch"
            )
            continue
        if sync == "kvstore" and devices > steps.job.machine.node.devices:
            notes.append(f"copies between devices stay within a node: kvstore on {devices} devices is left out")
            continue
        rows.append(_row(steps, steps.job.step(share, devices, sync=sync), base))
    return rows


def _row(steps: Steps, step: ScaledStep, base: float) -> ScalingRow:
    samples = step.local_batch * step.devices
    samples_per_s = samples / step.step.seconds
    speedup = samples_per_s / base
    memory = steps.job.memory(step)
    return ScalingRow(
        step=step,
        nodes=steps.job.nodes(step.devices),
        samples_per_s=samples_per_s,
        low=samples / step.step.high,
        high=samples / step.step.low,
        speedup=speedup,
        efficiency=speedup / step.devices,
        peak_bytes=memory.peak_bytes,
        own_peak_bytes=memory.own_peak_bytes,
        card_bytes=memory.card_bytes,
        fits=memory.fits,
    )
