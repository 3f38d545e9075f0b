"""A scaling study: one job on many set-ups of a machine, from its workload alone.

    workload at each batch ─▶ step on one device ─▶ exchange on each group ─▶ rows ─▶ advice

A step is estimated once a batch; what a group adds is simulated for each of its sizes and methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trimaran.cluster.find import find_machine
from trimaran.cluster.machines import Machine
from trimaran.costs.collectives.corrections import Correction as LinkCorrection
from trimaran.costs.collectives.corrections import corrected_by
from trimaran.costs.collectives.nccl_logs import read_logs
from trimaran.costs.exchange import ExchangeOptions
from trimaran.costs.operations.corrections import Correction
from trimaran.costs.operations.estimate import estimate_step
from trimaran.costs.operations.types import StepEstimate
from trimaran.costs.scaled import ScaledStep, Sync
from trimaran.costs.software import Software
from trimaran.errors import InputError
from trimaran.graph.workload import Workload
from trimaran.report.scaling.study import Mode, ScalingRow, ScalingStudy
from trimaran.session.planning import Progress, ignore_progress
from trimaran.session.scaling.advice import advise
from trimaran.session.scaling.memory import rank_memory
from trimaran.session.scaling.profiled import figures_correction, profile_correction
from trimaran.session.scaling.requests import default_software, parse_figures
from trimaran.session.workloads import workload
from trimaran.simulator.exchange import scale_step
from trimaran.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRequest:
    """What is asked.

    Attributes:
        cluster: machine, such as "dgx1-v100" or "dgx-a100:512"
        devices: sizes of the group
        batches: of a device (weak) or of all devices (strong)
        syncs: methods of exchange
        mode: weak or strong
        precision: in which is computed
        software: framework and year; None: what goes with the methods
        options: of the job
        measured: a figure of one device, such as "363 images/s", or several with their batches
        nccl_log: output of nccl-tests on the machine
        kineto: a trace of PyTorch's profiler of one device
        length_spread: of batches: standard deviation of their work by its mean
    """

    cluster: str
    devices: tuple[int, ...]
    batches: tuple[int, ...]
    syncs: tuple[Sync, ...] = ("nccl",)
    mode: Mode = "weak"
    precision: str = "float32"
    software: Software | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    measured: str | None = None
    nccl_log: Path | None = None
    kineto: Path | None = None
    length_spread: float = 0.0


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
    steps = Steps(reference, request, machine, software)
    notes: list[str] = []
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
        precision=request.precision,
        software=f"{software.framework} of {software.year:.0f}",
        mode=request.mode,
        unit="samples",
        rows=tuple(rows),
        advice=advise(rows, steps.known, steps.changed_s),
        notes=tuple(dict.fromkeys(notes)),
        source=steps.source,
    )


@dataclass(slots=True)
class Steps:
    """Steps of the job on one device, by batch, each estimated once."""

    reference: str
    request: StudyRequest
    machine: Machine
    software: Software
    source: str = ""
    _correction: Correction | None = None
    _links: LinkCorrection | None = None
    _known: dict[int, tuple[Workload, StepEstimate]] = field(default_factory=dict)

    def known(self, batch: int) -> tuple[Workload, StepEstimate]:
        """The workload at a batch, and what it takes alone."""
        if batch not in self._known:
            work = self._work(batch)
            estimate = self._estimate(work)
            anchor_s = self._anchor_s(work, estimate)
            if anchor_s is not None:
                estimate = estimate_step(work, self.machine.node.device, self.software, anchor_s=anchor_s)
            self._known[batch] = work, estimate
            self.source = estimate.source
        return self._known[batch]

    def _estimate(self, work: Workload) -> StepEstimate:
        """A step as modelled, and as several figures or a profile of the largest batch correct that."""
        device = self.machine.node.device
        figures = self._figures()
        if self._correction is None and len(figures) > 1:
            if self.request.kineto is not None:
                raise InputError("several measured figures and a profile correct the same: leave one of them out")
            known = [(self._work(batch), batch / rate) for rate, batch in figures if batch]
            self._correction = figures_correction(known, device, self.software)
        if self._correction is None and self.request.kineto is not None:
            profiled = self._work(max(self.request.batches))
            self._correction = profile_correction(
                self.request.kineto, profiled, estimate_step(profiled, device, self.software)
            )
        return estimate_step(work, device, self.software, correction=self._correction)

    def _figures(self) -> tuple[tuple[float, int | None], ...]:
        return () if self.request.measured is None else parse_figures(self.request.measured)

    def _work(self, batch: int) -> Workload:
        return workload(
            self.reference, batch=batch, precision=self.request.precision, options=self.request.options or None
        )

    def _options(self, *, explain: bool) -> ExchangeOptions:
        if self.request.nccl_log is not None and self._links is None:
            logs = read_logs(self.request.nccl_log)
            self._links = corrected_by(logs, machine=self.machine, year=self.software.year)
        return ExchangeOptions(explain=explain, correction=self._links, length_spread=self.request.length_spread)

    def _anchor_s(self, work: Workload, estimate: StepEstimate) -> float | None:
        """A step as the person's one figure has it; at another batch, the model is off by the same factor [s]."""
        figures = self._figures()
        if len(figures) != 1:
            return None
        ((samples_per_s, at),) = figures
        base = at or max(self.request.batches)
        if base == work.batch:
            return base / samples_per_s
        modelled = self._estimate(self._work(base))
        return estimate.seconds * base / samples_per_s / modelled.seconds

    def scaled(self, batch: int, devices: int, sync: Sync) -> ScaledStep:
        """The step of a rank at a batch, in a group."""
        work, estimate = self.known(batch)
        return scale_step(
            work,
            estimate,
            self.machine,
            devices=devices,
            nodes=-(-devices // self.machine.node.devices),
            sync=sync,
            software=self.software,
            options=self._options(explain=True),
        )

    def changed_s(self, work: Workload, estimate: StepEstimate, row: ScalingRow) -> float:
        """The step of a changed workload in the set-up of a row [s]."""
        step = scale_step(
            work,
            estimate,
            self.machine,
            devices=row.step.devices,
            nodes=row.nodes,
            sync=row.step.sync,
            software=self.software,
            options=self._options(explain=False),
        )
        return step.step.seconds


def _rows(steps: Steps, batch: int, sync: Sync, notes: list[str]) -> list[ScalingRow]:
    """One batch and one method on every group."""
    strong = steps.request.mode == "strong"
    alone = steps.scaled(batch, 1, sync)
    base = batch / alone.step.seconds
    rows = []
    for devices in steps.request.devices:
        share, rest = divmod(batch, devices) if strong else (batch, 0)
        if rest or not share:
            notes.append(f"a batch of {batch} has no equal shares for {format_count(devices, 'device')}: left out")
            continue
        if sync == "p2p" and devices > steps.machine.node.devices:
            notes.append(f"copies between devices stay within a node: p2p on {devices} devices is left out")
            continue
        rows.append(_row(steps, steps.scaled(share, devices, sync), base))
    return rows


def _row(steps: Steps, step: ScaledStep, base: float) -> ScalingRow:
    samples = step.batch_per_device * step.devices
    samples_per_s = samples / step.step.seconds
    speedup = samples_per_s / base
    work, _ = steps.known(step.batch_per_device)
    memory = rank_memory(
        steps.reference,
        work,
        step,
        device=steps.machine.node.device,
        software=steps.software,
        options=steps.request.options or None,
    )
    return ScalingRow(
        step=step,
        nodes=-(-step.devices // steps.machine.node.devices),
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
