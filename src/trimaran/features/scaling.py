"""A scaling study: one job on many set-ups of a machine, from its workload alone.

    workload at each batch ─▶ step on one device ─▶ exchange on each group ─▶ rows ─▶ advice

A step is estimated once a batch; what a group adds is simulated for each of its sizes and methods.

What change of a network, or of how it is trained, would help, with what each is expected to gain.

Each proposal is a changed workload put through the same simulation: nothing is proposed by a rule of thumb alone. They
are tried on the largest group of each batch and method. Left out: whether the changed network learns as well.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypedDict

from trimaran.base.arguments import told_of_classes
from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.remedies import Method, Remedy
from trimaran.base.units import format_count, format_seconds, format_some
from trimaran.graph.kernels.workload import WeightGradient, WorkKind, Workload
from trimaran.graph.types import Phase
from trimaran.jobs.huggingface import traced_notes
from trimaran.jobs.resolve import JobSource
from trimaran.machine.find import find_machine, grown_cluster
from trimaran.machine.prices import Price, parse_price
from trimaran.machine.types import MOST_NODES, Device
from trimaran.planner.input_pipeline import loading_changes
from trimaran.planning.analytical import BY_SHAPE, decoder_of_job, planned_by_shape
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.input_pipeline import SAMPLED_BATCH, pipeline_of, pipeline_words, sample_bytes
from trimaran.planning.measured_jobs import MeasuredJob, read_measured
from trimaran.planning.precision import choose_precision
from trimaran.planning.requests import (
    NO_LOADING,
    Loading,
    PlanRequest,
    check_loading,
    check_spread,
    check_traced,
    counts_given,
    default_software,
    devices_given,
    parse_figures,
    parse_software,
    parse_syncs,
)
from trimaran.planning.tracing.workloads import workload
from trimaran.pricing.collectives.corrections import corrected_by, read_logs
from trimaran.pricing.exchange.costs import ExchangeOptions
from trimaran.pricing.exchange.replica_memory import holds_words
from trimaran.pricing.exchange.step import ScaledStep, Sync
from trimaran.pricing.input_pipeline import InputPipeline
from trimaran.pricing.kernels.corrections import Correction, correction_from_profile, correction_from_steps, read_kineto
from trimaran.pricing.kernels.estimate import StepEstimate, estimate_step, kind_seconds, measured_step
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost
from trimaran.program.strategy import read_strategy
from trimaran.report.scaling import (
    LIMITERS,
    FasterMethod,
    FedCount,
    FeedingLimit,
    MemoryShortage,
    ScalingRow,
    ScalingStudy,
    SpeedRatio,
    StepFeeding,
    groups,
)
from trimaran.simulator.data_parallel import DataParallelSetup, data_parallel_step
from trimaran.simulator.exchange_comparison import StepEnds, speed_ratio, step_ends

Known = Callable[[int], tuple[Workload, StepEstimate]]


class StepOf(Protocol):
    """A step of a changed workload in a row's set-up, or with another input pipeline [s]."""

    def __call__(
        self, work: Workload, estimate: StepEstimate, row: ScalingRow, pipeline: InputPipeline | None = None, /
    ) -> Cost:
        """The step, where a row's own input pipeline stays without another one."""


_WORTH = 0.02
_SMALL_BYTES = 64 * 1024
_LARGE_SHARE = 0.15
_TINY = (WorkKind.ELEMENTWISE, WorkKind.NORMALIZATION, WorkKind.POOLING, WorkKind.COPY, WorkKind.REDUCTION)


def advise(
    rows: Sequence[ScalingRow],
    known: Known,
    step_of: StepOf,
    pipeline: InputPipeline | None = None,
    fits: Callable[[int, int, Sync], bool] = lambda _batch, _devices, _sync: True,
) -> tuple[Remedy, ...]:
    """Remedies that give at least two per cent more throughput, the largest gain first.

    Args:
        rows: of the study, which fit their devices
        known: workload and estimate at a batch
        step_of: a step of a changed workload in a row's set-up, or with another input pipeline [s]
        pipeline: input pipeline of each node; None: data are always ready
        fits: whether samples of a device fit it, in a group of devices that exchange gradients by a method
    """
    found: list[Remedy] = []
    for row in _largest(rows):
        work, estimate = known(row.local_batch_size)
        found += _splitting(row, work, estimate, step_of)
        found += _shrinking(row, work, estimate, step_of)
        found += _joining(row, work, estimate, step_of)
        found += _merging(row, work, estimate)
        if fits(2 * row.local_batch_size, row.devices, row.sync):
            found += _enlarging(row, known, step_of)
        if pipeline is not None:
            found += _loading(row, work, estimate, step_of, pipeline)
    least = 1 - 1 / (1 + _WORTH)
    worth = [remedy for remedy in found if remedy.predicted_gain >= least]
    return tuple(sorted(worth, key=lambda remedy: -remedy.predicted_gain))


def _largest(rows: Sequence[ScalingRow]) -> list[ScalingRow]:
    """The largest group of each batch and method."""
    largest = (max(held, key=lambda row: row.devices) for held in groups(rows, strong=False))
    return [row for row in largest if row.devices > 1]


def _splitting(row: ScalingRow, work: Workload, estimate: StepEstimate, step_of: StepOf) -> list[Remedy]:
    """A tensor that has one owner, split into one for each device."""
    large = [gradient for gradient in work.gradients if gradient.nbytes > _LARGE_SHARE * work.gradient_bytes]
    if row.sync != "kvstore" or not large:
        return []
    parts = row.devices
    gradients: list[WeightGradient] = []
    for gradient in work.gradients:
        if gradient in large:
            part = replace(gradient, nbytes=gradient.nbytes // parts, elements=gradient.elements // parts)
            gradients += [part] * parts
        else:
            gradients.append(gradient)
    names = format_some(list(dict.fromkeys(gradient.name for gradient in large)))
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
    if not row.exposed:
        return []
    layer = row.exposed[0]
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
    if not estimate.launch_bound or not launches or row.limiter in (LIMITERS["feeding"], "loading"):
        return []
    shorter_s = max(estimate.device_s, estimate.host_s * (1 - tiny / launches))
    saved_s = max(0.0, estimate.seconds - shorter_s)
    step = _step_of(row)
    seconds, low, high = (max(now_s - saved_s, 1e-9) for now_s in (step.seconds, step.low, step.high))
    then = Cost(seconds, low, high, step.source)
    return [
        Remedy(
            id="merge-kernels",
            limiter=LIMITERS["launches"],
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
    work, estimate = known(2 * row.local_batch_size)
    return [
        Remedy(
            id="larger-batch",
            limiter=row.limiter,
            name=f"{work.batch} samples a device",
            action=(
                f"Train with {work.batch} samples a device instead of {row.local_batch_size}: the same exchange "
                "and the same launches for twice the samples."
            ),
            assumption="the larger batch needs no more epochs.",
            setting={"local_batch_size": work.batch},
            **_simulated(row, step_of(work, estimate, row), batches=2),
        )
    ]


def _loading(
    row: ScalingRow, work: Workload, estimate: StepEstimate, step_of: StepOf, pipeline: InputPipeline
) -> list[Remedy]:
    """The input pipeline otherwise, where a step waits for it."""
    fed = row.feeding
    if fed is None or fed.limited_by is None:
        return []
    return [
        Remedy(
            id=one.id,
            limiter=LIMITERS["feeding"],
            name=one.name,
            action=one.action,
            assumption=one.assumption,
            **_simulated(row, step_of(work, estimate, row, one.pipeline)),
        )
        for one in loading_changes(pipeline, fed.workers, fed.limited_by)
    ]


class _Simulated(TypedDict):
    """The gain of a remedy by a changed step, as arguments of `Remedy`."""

    predicted_gain: float
    gain_interval: tuple[float, float]
    method: Method
    basis: str
    at: Mapping[str, int | str]


def _step_of(row: ScalingRow) -> Cost:
    """The step of a row with its ends [s]."""
    low, high = row.interval
    return Cost(row.step_time_s, row.global_batch_size / high, row.global_batch_size / low, "")


def _simulated(row: ScalingRow, step: Cost, *, batches: int = 1, method: Method = "re-simulated") -> _Simulated:
    """The gain of a changed step over that of a row, where all costs are at their median, low and high.

    Args:
        row: the set-up as it is
        step: of the changed workload [s]
        batches: of now that the changed step trains
        method: how the changed step was found
    """
    now = _step_of(row)
    pairs = ((now.seconds, step.seconds), (now.low, step.low), (now.high, step.high))
    spread = [1.0 - then_s / (batches * now_s) for now_s, then_s in pairs]
    figures = f"{format_seconds(now.seconds)} a step becomes {format_seconds(step.seconds)}"
    return {
        "predicted_gain": spread[0],
        "gain_interval": (min(spread), max(spread)),
        "method": method,
        "basis": figures + (f" for {batches} times the samples." if batches > 1 else "."),
        "at": {"devices": row.devices, "local_batch_size": row.local_batch_size, "sync": row.sync},
    }


@told_of_classes
def predict_scaling(
    job: str,
    *,
    cluster: str,
    devices: int | Sequence[int] | None = None,
    local_batch: int | Sequence[int] | None = None,
    batch: int | Sequence[int] | None = None,
    sync: str | Sequence[Sync] = "nccl",
    precision: str | None = None,
    software: str | None = None,
    options: Mapping[str, str] | None = None,
    measured: str | None = None,
    nccl_log: Path | None = None,
    length_spread: float = 0.0,
    servers: int = 0,
    price: str | None = None,
    server_price: str | None = None,
    workers: int | None = None,
    loading: Loading = NO_LOADING,
    progress: Progress = ignore_progress,
) -> ScalingStudy:
    """Predict throughput and speedup of data parallelism, and what limits them.

    Args:
        job: as for `trimaran.check`
        cluster: machine of the catalog, such as "dgx1-v100" or "dgx-a100:8@ethernet-25g"
        devices: sizes of the group, such as (1, 2, 4, 8), or one; None: 1, 2, 4 and 8, on as many
            nodes as that takes; of "NAME:N" as far as its nodes have them
        local_batch: samples of each device, which stay as devices are added (weak scaling); 64 where `batch` is not
            given either
        batch: samples of all devices together, which are shared among them (strong scaling)
        sync: how gradients are exchanged, one method or several, such as "kvstore,nccl"
        precision: of compute: "ieee", "fp32", "tf32", "bf16" or "fp16"; None: as for `trimaran.plan`
        software: framework and year, such as "mxnet:2018"; None: what goes with `sync`
        options: of the job, by name
        measured: what predictions start from, as `trimaran.planning.measured_jobs` reads it: "363 images/s at 64", or
            several figures; a trace of PyTorch's profiler of one device; a log or the folder of a run on one device
        nccl_log: output of nccl-tests on the machine
        length_spread: of batches: standard deviation of their work by its mean
        servers: machines without devices that sum gradients of several nodes ("server", "kvstore", "byteps"),
            each with the network of a node; 0: the nodes' hosts do
        price: of the machine, such as "24.48 USD/node-hour"; None: that of the cluster file
        server_price: of a server machine, such as "2 USD/node-hour"
        workers: of each device that load; 0: its own process does; None: the fewest that keep up
        loading: input pipeline of each node, such as `Loading(loader="135 images/s per worker")`; nothing: data are
            always ready
        progress: told what is being done

    Raises:
        InputError: an unknown job, machine or method, more devices than there are, both batches, a
            price of nodes with server machines that have none, or server machines or their price that nothing uses
    """
    if batch is not None and local_batch is not None:
        raise InputError("give one of batch, of all devices, and local_batch, of each device", code="scaling.one-batch")
    asked = batch if batch is not None else 64 if local_batch is None else local_batch
    batches = counts_given(asked, what="samples of a batch")
    devices = devices_given(devices, cluster=cluster, usual="1,2,4,8")
    methods = sync if isinstance(sync, str) else ",".join(sync)
    syncs = parse_syncs(methods)
    _check_servers(syncs, servers)
    cluster = grown_cluster(cluster, max(devices))
    machine = find_machine(cluster)
    # Before the job is traced: it says which cluster has that many.
    machine.allocate(max(devices))
    prices = _prices(price, server_price, servers, of_machine=machine.node.price)
    framework = default_software(syncs) if software is None else check_traced(parse_software(software))
    chosen = choose_precision(job, precision, machine.node.device)
    estimates = Estimates(
        machine.node.device,
        framework,
        measured=None if measured is None else _of_one_device(read_measured(measured)),
        largest_batch=max(batches),
    )
    links = None if nccl_log is None else corrected_by(read_logs(nccl_log), machine=machine, year=framework.year)
    check_loading(loading, workers=workers)
    pipeline = pipeline_of(
        loading,
        JobSource(reference=job),
        machine,
        workers=workers,
        sample_bytes=lambda: sample_bytes(
            workload(job, batch=SAMPLED_BATCH, precision=chosen.name, options=options or None)
        ),
    )
    steps = DataParallelJob(
        reference=job,
        machine=machine,
        precision=chosen.name,
        software=framework,
        options=options or {},
        exchange=ExchangeOptions(correction=links, length_spread=check_spread(length_spread), servers=servers),
        estimator=lambda work: estimates.of(work, steps.workload),
        pipeline=pipeline,
    )
    notes: list[str] = [] if pipeline is None else [pipeline_words(pipeline)]
    if servers and price is None and prices is None and machine.node.price is not None:
        notes.append(f"cost is left out: {cluster} has a price, its server machines have none (--server-price)")
    notes += () if options else traced_notes(job)
    planned = PlanRequest(cluster=cluster, devices=max(devices), options=options or {})
    if planned_by_shape(job, planned) is not None:
        described = decoder_of_job(job, planned)
        notes += () if described is None else (one for one in described.assumed if one not in notes)
        if software is None:
            notes.append(f"each step is that of {framework.framework}; {BY_SHAPE}")
    premises = len(notes)
    rows: list[ScalingRow] = []
    limits: list[FeedingLimit] = []
    shortages: list[MemoryShortage] = []
    for place, samples in enumerate(batches):
        progress(f"{job}, batch {samples}", place, len(batches))
        for method in syncs:
            found = _rows(steps, samples, method, devices, notes, prices, strong=batch is not None)
            rows += found
            shortage = _shortage(steps, found, samples, strong=batch is not None)
            if shortage is not None:
                shortages.append(shortage)
                if batch is None and shortage.largest > 0:
                    rows += _rows(steps, shortage.largest, method, devices, notes, prices, strong=False)
            if pipeline is not None:
                limits.append(feeding_limit(steps, samples, method, max(devices), strong=batch is not None))
    if not rows:
        raise InputError("; ".join(notes[premises:]) or "nothing is asked for", cluster=cluster)
    return ScalingStudy(
        job=job,
        cluster=cluster,
        device=machine.node.device.title,
        precision=chosen.name,
        precision_source=chosen.source,
        software=framework.text,
        mode="weak" if batch is None else "strong",
        unit="samples",
        rows=tuple(rows),
        faster=_faster(steps, rows) if len(syncs) > 1 else (),
        currency=None if prices is None else prices[0].currency,
        does_not_fit=tuple(shortages),
        advice=advise(
            [row for row in rows if row.fits], steps.known, partial(_changed, steps), pipeline, partial(_fits, steps)
        ),
        input_pipeline=tuple(limits),
        notes=tuple(dict.fromkeys([*notes, *_machine_notes(syncs, rows), *_memory_notes(framework, rows)])),
        source=estimates.source,
    )


@dataclass(slots=True)
class Estimates:
    """Steps of one device as modelled, corrected by what a person measured of the job.

    Attributes:
        device: of the machine
        software: framework and year
        measured: a figure of one device, such as "363 images/s", or several with their batches
        largest_batch: of the study, to which figures without a batch belong
        source: of the estimate that was made last
    """

    device: Device
    software: Software
    _: KW_ONLY
    measured: MeasuredJob | None
    largest_batch: int
    source: str = ""
    _correction: Correction | None = None

    def of(self, work: Workload, workload: Callable[[int], Workload]) -> StepEstimate:
        """A step of one device as modelled, and as the person's figures or profile correct that.

        Args:
            work: of the step
            workload: of the job at a batch

        Raises:
            InputError: figures or profile cannot be used
        """
        estimate = self._corrected(work, workload)
        anchor_s = self._anchor_s(work, estimate, workload)
        if anchor_s is not None:
            estimate = estimate_step(work, self.device, self.software, anchor_s=anchor_s)
        self.source = estimate.source
        return estimate

    def _corrected(self, work: Workload, workload: Callable[[int], Workload]) -> StepEstimate:
        """A step as modelled, and as several figures or a profile of the largest batch correct that."""
        figures = self._figures()
        if self._correction is None and len(figures) > 1:
            self._correction = correction_from_steps(
                [
                    measured_step(workload(batch), self.device, self.software, batch / rate)
                    for rate, batch in figures
                    if batch
                ]
            )
        file = self.measured.file if self.measured is not None and self.measured.kind == "profile" else None
        if self._correction is None and file is not None:
            profiled = workload(self.largest_batch)
            modelled = estimate_step(profiled, self.device, self.software)
            trace = read_kineto(file)
            self._correction = correction_from_profile(trace, kind_seconds(profiled, modelled), modelled.host_s)
        return estimate_step(work, self.device, self.software, correction=self._correction)

    def _figures(self) -> tuple[tuple[float, int | None], ...]:
        if self.measured is None or self.measured.kind == "profile":
            return ()
        if self.measured.kind == "figures":
            return parse_figures(self.measured.text)
        batch, step_s = self.measured.batch or self.largest_batch, self.measured.step_s or math.inf
        return ((batch / step_s, batch),)

    def _anchor_s(self, work: Workload, estimate: StepEstimate, workload: Callable[[int], Workload]) -> float | None:
        """A step as the person's one figure has it; at another batch, the model is off by the same factor [s]."""
        figures = self._figures()
        if len(figures) != 1:
            return None
        ((samples_per_s, at),) = figures
        base = at or self.largest_batch
        if base == work.batch:
            return base / samples_per_s
        modelled = self._corrected(workload(base), workload)
        return estimate.seconds * base / samples_per_s / modelled.seconds


def _of_one_device(measured: MeasuredJob) -> MeasuredJob:
    """A measurement of one device, from which steps on several follow.

    Raises:
        InputError: it is of several devices, or has neither a time nor kernels
    """
    several = measured.strategy and read_strategy(measured.strategy).devices > 1
    if (
        several
        or measured.kind not in ("step", "profile", "figures")
        or (measured.kind == "step" and not measured.step_s)
    ):
        raise InputError(
            f"--measured {measured.text}: `scale` starts from a step, figures or a profile of one device"
            + (f", and {measured.strategy} is of several" if several else ""),
            code="scaling.not-of-one-device",
        )
    return measured


def _changed(
    job: DataParallelJob,
    work: Workload,
    estimate: StepEstimate,
    row: ScalingRow,
    pipeline: InputPipeline | None = None,
) -> Cost:
    """The step of a changed workload in the set-up of a row, or with another input pipeline [s]."""
    setup = job.setup(row.local_batch_size, row.devices, sync=row.sync)
    options = replace(setup.options, explain=False)
    if pipeline is not None:
        setup = replace(setup, feed=pipeline)
    return data_parallel_step(replace(setup, workload=work, estimate=estimate, options=options)).step


def _check_servers(syncs: Sequence[Sync], servers: int) -> None:
    """Refuse server machines that no method uses."""
    if not 0 <= servers <= MOST_NODES:
        raise InputError(
            f"--servers: 0 to {MOST_NODES:,} machines, got {servers}", code="scaling.bad-servers", servers=servers
        )
    if servers and set(syncs) == {"nccl"}:
        raise InputError(
            f"--servers {servers}: --sync nccl sums gradients without them; say --sync server, kvstore or byteps, or "
            "leave it out",
            code="scaling.servers-unused",
            servers=servers,
        )


def _prices(
    price: str | None, server_price: str | None, servers: int, *, of_machine: Price | None
) -> tuple[Price, Price | None] | None:
    """Prices of the machine, as asked for or as its file says, and of a server machine; None: one is not known."""
    paid = of_machine if price is None else parse_price(price)
    if server_price is not None and not (servers and paid):
        raise InputError(
            f'--server-price "{server_price}" is a part of the cost with --servers and --price together: say both, or '
            "leave it out",
            code="scaling.server-price-unused",
        )
    if paid is None or (servers and price is None and server_price is None):
        return None
    if servers and server_price is None:
        raise InputError(
            f"{format_count(servers, 'server machine')} cost too: say --server-price, such as "
            '"2 USD/node-hour", or leave --price out',
            code="scaling.no-server-price",
            servers=servers,
        )
    of_server = None if server_price is None else parse_price(server_price)
    if of_server is not None and of_server.currency != paid.currency:
        raise InputError(
            f"prices in one currency, got {paid.currency} and {of_server.currency}", code="scaling.two-currencies"
        )
    return paid, of_server


def _machine_notes(syncs: Sequence[Sync], rows: Sequence[ScalingRow]) -> Iterator[str]:
    """What sums gradients over several nodes, and on which machines."""
    for sync in syncs:
        several = [row for row in rows if row.sync == sync and row.nodes > 1]
        if sync == "nccl" or not several:
            continue
        within = {"kvstore": "devices", "server": "hosts", "byteps": "all-reduce"}[sync]
        if any(row.server_machines for row in several):
            over = (
                "machines without devices, which this takes in addition to the nodes, each with the network of a node"
            )
            over += "; the nodes' hosts take part too" if sync == "byteps" else ""
        else:
            over = "the nodes' hosts, without further machines (--servers adds some)"
        yield f"{sync} sums within a node by {within}, over nodes on {over}"


def _memory_notes(software: Software, rows: Sequence[ScalingRow]) -> Iterator[str]:
    """Whose memory of replicas the figures are, where gradients are in buckets."""
    if any(row.sync == "nccl" and row.devices > 1 for row in rows):
        yield holds_words(software)


def _faster(job: DataParallelJob, rows: Sequence[ScalingRow]) -> tuple[FasterMethod, ...]:
    """The fastest method of each batch and number of devices, as far as the constants of exchanges are known."""
    groups: dict[tuple[int, int], dict[str, StepEnds]] = {}
    for row in rows:
        if row.fits and row.devices > 1:
            setup = job.setup(row.local_batch_size, row.devices, sync=row.sync)
            groups.setdefault((row.local_batch_size, row.devices), {})[row.sync] = step_ends(setup)
    found = []
    for (batch, devices), ends in groups.items():
        if len(ends) == 1:
            continue
        best = min(ends, key=lambda sync: ends[sync].seconds)
        others = {sync: speed_ratio(ends[best], step) for sync, step in ends.items() if sync != best}
        sure = all(ratio.faster for ratio in others.values())
        ratios = {sync: SpeedRatio(ratio=one.value, interval=(one.low, one.high)) for sync, one in others.items()}
        found.append(
            FasterMethod(local_batch_size=batch, devices=devices, sync=best if sure else None, best=best, ratios=ratios)
        )
    return tuple(found)


def _rows(
    job: DataParallelJob,
    batch: int,
    sync: Sync,
    counts: Sequence[int],
    notes: list[str],
    prices: tuple[Price, Price | None] | None,
    *,
    strong: bool,
) -> list[ScalingRow]:
    """One batch and one method on every group."""
    alone = job.step(batch, 1, sync=sync)
    base = batch / alone.step.seconds
    rows = []
    for devices in counts:
        share, rest = divmod(batch, devices) if strong else (batch, 0)
        if rest or not share:
            notes.append(
                f"a batch of {batch} has no equal shares for {format_count(devices, 'device')}: left out; take a "
                f"multiple of {devices}, or say --local-batch"
            )
            continue
        rows.append(_row(job, job.step(share, devices, sync=sync), alone, base, prices))
    return rows


def _fits(job: DataParallelJob, batch: int, devices: int, sync: Sync) -> bool:
    return job.memory_at(batch, devices, sync=sync).fits


def _shortage(job: DataParallelJob, rows: Sequence[ScalingRow], batch: int, *, strong: bool) -> MemoryShortage | None:
    """What does not fit of one batch and one method, and the most samples of a device that do; None: all fits."""
    unfit = [row for row in rows if not row.fits]
    if not unfit:
        return None
    worst = max(unfit, key=lambda row: row.peak_bytes)
    step = job.step(worst.local_batch_size, worst.devices, sync=worst.sync)
    memory = job.memory(step)
    return MemoryShortage(
        sync=step.sync,
        batch=batch,
        strong=strong,
        devices=tuple(row.devices for row in unfit),
        fitting=tuple(row.devices for row in rows if row.fits),
        needed_bytes=memory.needed_bytes,
        card_bytes=memory.card_bytes,
        state_bytes=job.state_bytes(step.local_batch),
        largest=job.largest_batch(step.devices, sync=step.sync, below=step.local_batch),
    )


def feeding_limit(job: DataParallelJob, batch: int, sync: Sync, most: int, *, strong: bool) -> FeedingLimit:
    """From how many devices on the input pipeline limits a step.

    Every number of devices of a node is tried, and whole nodes in doublings up to `most`.

    Args:
        job: with an input pipeline
        batch: samples of each device, or of all of them
        sync: how gradients are exchanged
        most: largest number of devices that is asked for
        strong: the batch is of all devices
    """
    of_node = job.machine.node.devices
    counts = list(range(1, of_node + 1))
    while counts[-1] * 2 <= min(most, job.machine.devices):
        counts.append(counts[-1] * 2)
    tried: list[FedCount] = []
    for devices in counts:
        share, rest = divmod(batch, devices) if strong else (batch, 0)
        if rest or not share:
            continue
        setup = job.setup(share, devices, sync=sync)
        step = data_parallel_step(replace(setup, options=replace(setup.options, explain=False)))
        local = setup.local_devices
        ready_s = step.step.seconds - step.feeding_s
        tried.append(
            FedCount(
                devices=devices,
                limit=step.fed.limit if step.fed is not None and step.limiter in ("feeding", "loading") else None,
                workers=0 if step.fed is None else step.fed.workers,
                wanted_samples_per_s=local * share / ready_s,
                samples_per_s=local * share / step.step.seconds,
            )
        )
    of_batch = {"global_batch_size" if strong else "local_batch_size": batch}
    return FeedingLimit(sync=sync, tried=tuple(tried), **of_batch)


def why_above_linear(alone: ScaledStep, step: ScaledStep) -> str:
    """Why devices together are more than as many times as fast as one, with the figures; empty where they are not.

    The largest part of the step that takes less than its share of the step on one device is named.

    Args:
        alone: the step of one device
        step: of each of several, with the same samples each or a share of them
    """
    share = step.local_batch / alone.local_batch
    if step.step.seconds >= share * alone.step.seconds:
        return ""
    saved = {
        "update": share * alone.update_s - step.update_s,
        "compute": share * alone.fp_bp_s - step.fp_bp_s,
        "other": share * (alone.overhead_s + alone.feeding_s) - step.overhead_s - step.feeding_s,
    }
    most = max(saved, key=lambda part: saved[part])
    if most == "update":
        how = "the update of each device is that of the tensors that it owns"
        before_s, now_s = alone.update_s, step.update_s
    elif most == "compute":
        how = f"the forward and backward of a sample take less with {step.local_batch} on a device"
        before_s, now_s = alone.fp_bp_s / alone.local_batch, step.fp_bp_s / step.local_batch
    else:
        how = "calls and waiting for data take less"
        before_s, now_s = alone.overhead_s + alone.feeding_s, step.overhead_s + step.feeding_s
    return f"{how}, {format_seconds(now_s)} against {format_seconds(before_s)} on one device"


def _row(
    job: DataParallelJob,
    step: ScaledStep,
    alone: ScaledStep,
    base: float,
    prices: tuple[Price, Price | None] | None,
) -> ScalingRow:
    samples = step.local_batch * step.devices
    samples_per_s = samples / step.step.seconds
    speedup = samples_per_s / base
    memory = job.memory(step)
    setup = job.setup(step.local_batch, step.devices, sync=step.sync)
    low_s, high_s = step_ends(setup).interval if step.devices > 1 else (step.step.seconds, step.step.seconds)
    return ScalingRow(
        devices=step.devices,
        local_batch_size=step.local_batch,
        sync=step.sync,
        limiter=LIMITERS.get(step.limiter, step.limiter) if memory.fits else "memory",
        step_time_s=step.step.seconds,
        forward_s=step.forward_s,
        backward_s=step.backward_s,
        communication_s=step.communication_s,
        exposed_communication_s=step.exposed_communication_s,
        update_s=step.update_s,
        overhead_s=step.overhead_s,
        feeding_s=step.feeding_s,
        exposed=step.exposed,
        feeding=None if step.fed is None else StepFeeding(workers=step.fed.workers, limited_by=step.fed.limit),
        nodes=job.nodes(step.devices),
        samples_per_s=samples_per_s,
        interval=(samples / step.step.high, samples / step.step.low),
        speedup=speedup,
        efficiency=speedup / step.devices,
        peak_bytes=memory.peak_bytes,
        own_peak_bytes=job.memory(step, owns=False).peak_bytes,
        card_bytes=memory.card_bytes,
        fits=memory.fits,
        why_above_linear=why_above_linear(alone, step) if step.devices > 1 else "",
        server_machines=setup.server_machines,
        exchange_interval=(samples / high_s, samples / low_s),
        cost_of_million_samples=None if prices is None else _cost(setup, prices, seconds=1e6 / samples_per_s),
    )


def _cost(setup: DataParallelSetup, prices: tuple[Price, Price | None], *, seconds: float) -> float:
    """Cost of the nodes and of the server machines for a time [currency]."""
    price, of_server = prices
    cost = price.of(setup.devices, seconds, node_devices=setup.machine.node.devices)
    if of_server is not None:
        cost += of_server.of(setup.server_machines, seconds)
    return cost
