"""A scaling study: throughput of a job on numbers of devices, what limits it, what would help; and its page.

The names of the columns fill 80 columns, so that no figure may be longer than its column's name: times have at most
five characters, in a unit that the whole table shares.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from trimaran.base.decoding import Count, Positive
from trimaran.base.html import DataTable
from trimaran.base.precision import AS_ASKED, precision_words
from trimaran.base.remedies import Remedy
from trimaran.base.units import format_bytes, format_count, format_figure, format_seconds, format_span
from trimaran.pricing.exchange.step import ExposedGradient, StepSums, Sync
from trimaran.pricing.input_pipeline import RESOURCES, Resource
from trimaran.program.plan_file import Plan
from trimaran.report.page.charts import (
    SERIES_COLOURS,
    Bar,
    ChartAxis,
    LimitLine,
    Series,
    bar_chart,
    curve_chart,
    time_unit,
)
from trimaran.report.page.layout import Absent, Chart, Page, Section, Words, those_known
from trimaran.report.page.steps import rate
from trimaran.report.page.terminal import print_page
from trimaran.report.remedies import remedies_section
from trimaran.report.tables import page_text

Mode = Literal["weak", "strong"]
"""Weak: each device has its batch, however many there are. Strong: all devices share one batch."""

LIMITERS: Mapping[str, str] = {
    "launches": "compute: kernel launches",
    "update": "compute: weight update",
    "feeding": "input pipeline",
}
"""Names of parts that a plan puts together, or calls otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFeeding:
    """How a row is fed.

    Attributes:
        workers: of each device
        limited_by: what of the input pipeline sets the wait; None: data are always ready
    """

    workers: Count
    limited_by: Resource | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow(StepSums):
    """One set-up of the study; times are of a step of each rank.

    Attributes:
        devices: in the group
        local_batch_size: samples of each
        sync: how gradients are exchanged
        nodes: that the devices are in
        samples_per_s: of all devices together [samples/s]
        interval: its 90 % interval [samples/s]
        exchange_interval: samples/s with all that nobody has measured of the exchange at its slow and its fast end
        speedup: against one device, with the same batch a device (weak) or in all (strong)
        efficiency: speedup by devices
        limiter: the bottleneck of the step, as plans name it, then the part of it; memory where it does not fit
        step_time_s: the whole [s]
        forward_s: FP [s]
        backward_s: BP, as long as it takes during communication [s]
        communication_s: exchange of gradients, overlapped or not [s]
        exposed_communication_s: the part of it that does not overlap the backward [s]
        update_s: the optimizer [s]
        overhead_s: calls, synchronization, stragglers [s]
        feeding_s: wait for data [s]
        exposed: layers that the step waits for, the longest wait first
        feeding: how its data come; None: data are ready
        peak_bytes: memory of the rank that needs the most, as its framework's allocator counts [bytes]
        own_peak_bytes: memory of a rank that owns no tensor of others [bytes]
        card_bytes: memory of a device, as its driver reports [bytes]
        server_machines: machines without devices, as servers, in addition to the nodes
        cost_of_million_samples: server machines included; None: no price is given [currency]
        fits: whether the rank that needs the most fits its device, with what no allocator counts
        why_above_linear: why the speedup is above the number of devices; empty where it is not
    """

    derived: ClassVar = ("global_batch_size", "fp_bp_s", "wu_s", "wu_exposed_s", "overlapped_communication_s")
    devices: Count
    local_batch_size: Count
    sync: Sync
    nodes: Count
    samples_per_s: Positive
    interval: tuple[Positive, Positive]
    exchange_interval: tuple[Positive, Positive] = (0.0, 0.0)
    speedup: Positive
    efficiency: Positive
    limiter: str
    step_time_s: Positive
    forward_s: Positive
    backward_s: Positive
    communication_s: Positive
    exposed_communication_s: Positive
    update_s: Positive
    overhead_s: Positive
    feeding_s: Positive
    exposed: tuple[ExposedGradient, ...] = ()
    feeding: StepFeeding | None = None
    peak_bytes: Count
    own_peak_bytes: Count
    card_bytes: Count = 0
    server_machines: Count = 0
    cost_of_million_samples: Positive | None = None
    fits: bool
    why_above_linear: str = ""

    @property
    def global_batch_size(self) -> int:
        """Samples of all devices."""
        return self.local_batch_size * self.devices

    @property
    def overlapped_communication_s(self) -> float:
        """Communication during the backward [s]."""
        return self.communication_s - self.exposed_communication_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRatio:
    """Speed of a method by that of another.

    Attributes:
        ratio: with every constant at its value
        interval: between the ends of the constants
    """

    ratio: Positive
    interval: tuple[Positive, Positive]


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterMethod:
    """Which method of exchange is the fastest for a batch and a number of devices.

    Attributes:
        local_batch_size: samples of a device
        devices: in the group
        sync: the fastest; None: not sure, as it depends on constants that nobody has measured
        best: the fastest with every constant at its value
        ratios: speed of `best` by that of each other method
    """

    local_batch_size: Count
    devices: Count
    sync: str | None
    best: str
    ratios: Mapping[str, SpeedRatio]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShortage:
    """A batch and a method of exchange that do not fit on all of the numbers of devices that were asked for.

    Attributes:
        sync: how gradients are exchanged
        batch: samples of each device, or of all
        strong: they are of all
        devices: numbers of devices on which it does not fit
        fitting: those on which it does
        needed_bytes: of the fullest rank, with what no allocator counts [bytes]
        card_bytes: of a device, as its driver reports [bytes]
        state_bytes: parameters, gradients and optimizer state of a replica [bytes]
        largest: samples of a device that fit; 0: not even one
    """

    sync: str
    batch: Count
    strong: bool
    devices: tuple[Count, ...]
    fitting: tuple[Count, ...]
    needed_bytes: Count
    card_bytes: Count
    state_bytes: Count
    largest: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class FedCount:
    """A number of devices with an input pipeline.

    Attributes:
        devices: in the group
        limit: what of the input pipeline limits the step; None: it does not
        workers: of each device
        wanted_samples_per_s: that the devices of a node would take if data were always ready [samples/s]
        samples_per_s: that they get [samples/s]
    """

    devices: Count
    limit: Resource | None
    workers: Count
    wanted_samples_per_s: Positive
    samples_per_s: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingLimit:
    """From how many devices on the input pipeline limits.

    Attributes:
        sync: how gradients are exchanged
        local_batch_size: samples of each device; None: they are of all
        global_batch_size: of all; None: they are of each device
        tried: numbers of devices, ascending
    """

    derived: ClassVar = ("limits_from_devices", "limits_by")
    sync: str
    local_batch_size: Count | None = None
    global_batch_size: Count | None = None
    tried: tuple[FedCount, ...]

    @property
    def limits_from_devices(self) -> int | None:
        """Fewest devices whose step it limits."""
        return None if self.first is None else self.first.devices

    @property
    def limits_by(self) -> Resource | None:
        """What of it limits that."""
        return None if self.first is None else self.first.limit

    @property
    def first(self) -> FedCount | None:
        """The smallest number of devices whose step the input pipeline limits; None: there is none."""
        return next((one for one in self.tried if one.limit is not None), None)

    @property
    def free_again(self) -> tuple[int, ...]:
        """Larger numbers of devices that it does not limit."""
        first = self.first
        return tuple(
            one.devices for one in self.tried if first is not None and one.devices > first.devices and one.limit is None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStudy:
    """All set-ups.

    Attributes:
        job: as asked for
        cluster: machine with the number of nodes
        device: of which it has many
        precision: in which is computed
        precision_source: who chose that
        software: framework and year
        mode: weak or strong
        unit: what is counted, "images" or "samples"
        rows: by batch, method and devices, in that order
        faster: the fastest method of each batch and number of devices, where several are asked for
        currency: of costs; None where no price is given
        advice: remedies for the largest groups, the largest gain first
        notes: what was assumed
        source: of the times
        input_pipeline: from how many devices on it limits, by batch and method; empty: data are always ready
        does_not_fit: batches that do not fit on all of the devices; of each the rows of the largest batch that fits
            follow its own, where each device has its batch
    """

    job: str
    cluster: str
    device: str
    precision: str
    precision_source: str = AS_ASKED
    software: str
    mode: Mode
    unit: str = "samples"
    rows: tuple[ScalingRow, ...]
    advice: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    faster: tuple[FasterMethod, ...] = ()
    currency: str | None = None
    input_pipeline: tuple[FeedingLimit, ...] = ()
    does_not_fit: tuple[MemoryShortage, ...] = ()

    def __str__(self) -> str:
        return page_text(lambda out: print_page(out, scale_page(self)))


# ---------------------------------------------------------------------------------------------------------------------
# The page of a scaling study

_NAMES = {"nccl": "DDP (all-reduce, nccl)"}
_PARTS = (
    ("forward and backward", "var(--forward)"),
    ("communication, waiting", "var(--exposed)"),
    ("update", "var(--update)"),
    ("input pipeline", "var(--load)"),
    ("other", "var(--unattributed)"),
)


def scale_page(study: ScalingStudy, plans: Sequence[Plan] = (), asked: str = "") -> Page:
    """Throughput by devices, a table of each batch and method, what the step waits for, and what would help.

    Args:
        study: the answer
        plans: those for the same job and machine are points of the curve
        asked: command that asked; "": not known
    """
    planned, held = _planned(plans, study), groups(study.rows, strong=study.mode == "strong")
    # The verdict says what does not fit at all.
    shown = [rows for rows in held if any(row.fits for row in rows)]
    in_ms = {_unit(rows) for rows in shown} == {"ms"}
    return Page(
        kind="Scaling study",
        title=f"{study.job} on {study.cluster} ({study.device})",
        verdict=" ".join(verdict_lines(study)),
        facts=[
            ("scaling", study.mode),
            ("precision", precision_words(study.precision, study.precision_source)),
            ("software", study.software),
            ("times", study.source),
        ],
        sections=those_known(
            _curve_section(held, study.mode, planned),
            *(
                _parts_section(study, rows, n, _legend(study, in_ms=in_ms) if n == len(shown) else [])
                for n, rows in enumerate(shown, 1)
            ),
            _list("faster", "Fastest method of exchange, with the ends of its ratio to others", faster_lines(study)),
            _list("machines", "Machines and cost", machine_lines(study)),
            _list("feeding", "Where the input pipeline limits", feeding_lines(study)),
            _list("layers", "Layers whose gradients do not overlap", layer_lines(study)),
            _memory_section(study.rows),
            remedies_section(study.advice) if study.advice else None,
        ),
        absent=[]
        if planned
        else [
            Absent(
                title="The best plan on the curve",
                how="put this document and a plan file into one folder, and report the folder: "
                f"trimaran plan {shlex.quote(study.job)} --cluster {shlex.quote(study.cluster)} --output plan.json",
            )
        ],
        notes=study.notes,
        command=f"{asked} --json" if asked else _command(study),
    )


def _list(name: str, title: str, lines: Sequence[str]) -> Section | None:
    return Section(id=name, title=title, content=[Words(lines=lines, is_list=True)]) if lines else None


def _command(study: ScalingStudy) -> str:
    """The command that gives such a document, as far as its figures tell."""
    counts = ",".join(str(count) for count in sorted({row.devices for row in study.rows}))
    is_weak = study.mode == "weak"
    batches = sorted({row.local_batch_size if is_weak else row.global_batch_size for row in study.rows})
    words = ["trimaran", "scale", study.job, "--cluster", study.cluster, "--devices", counts]
    words += ["--local-batch" if is_weak else "--batch", ",".join(map(str, batches))]
    words += ["--sync", ",".join(dict.fromkeys(row.sync for row in study.rows)), "--precision", study.precision]
    return shlex.join([*words, "--json"])


def _planned(plans: Sequence[Plan], study: ScalingStudy) -> list[tuple[Plan, float]]:
    """Plans for the job of a study on its machine, with their throughput [samples/s]."""
    machine = study.cluster.partition(":")[0]
    return [
        (plan, plan.premises.global_batch_size / plan.prediction.step_time_s)
        for plan in plans
        if plan.job == study.job
        and plan.premises.cluster.partition(":")[0] == machine
        and plan.prediction.step_time_s > 0
    ]


def groups(rows: Iterable[ScalingRow], *, strong: bool) -> list[list[ScalingRow]]:
    """Rows of one batch and one method together, in order.

    Args:
        rows: of a study
        strong: the batch is that of all devices
    """
    held: dict[tuple[int, str], list[ScalingRow]] = {}
    for row in rows:
        held.setdefault((_batch(row, "strong" if strong else "weak"), row.sync), []).append(row)
    return list(held.values())


def _batch(row: ScalingRow, mode: Mode) -> int:
    return row.global_batch_size if mode == "strong" else row.local_batch_size


def _curve_section(held: Sequence[Sequence[ScalingRow]], mode: Mode, planned: Sequence[tuple[Plan, float]]) -> Section:
    series, rows = [], []
    what = "a device" if mode == "weak" else "in all"
    for n, every in enumerate(held):
        shown, sync, batch = [row for row in every if row.fits], every[0].sync, _batch(every[0], mode)
        name = _NAMES.get(sync, sync) + (f", batch {batch} {what}" if len(held) > 1 else "")
        colour = SERIES_COLOURS[n % len(SERIES_COLOURS)]
        if shown and n == 0:
            first = shown[0]
            ideal = [(float(row.devices), first.samples_per_s / first.devices * row.devices) for row in shown]
            series.append(Series(name="ideal", points=ideal, colour=SERIES_COLOURS[5], dashed=True, dots=False))
        series.append(
            Series(
                name=name,
                points=[(float(row.devices), row.samples_per_s) for row in shown],
                ends=[row.interval for row in shown],
                says=[f"{row.devices}: {_rate(row.samples_per_s)} samples/s" for row in shown],
                colour=colour,
            )
        )
        rows += [
            (
                _NAMES.get(sync, sync),
                f"{batch:,} {what}",
                f"{row.devices:,}",
                _rate(row.samples_per_s) if row.fits else "does not fit",
                format_span(*map(_rate, row.interval)) if row.fits else "–",
                format_figure(row.speedup) if row.fits else "–",
                f"{row.efficiency:.0%}" if row.fits else "–",
                row.limiter,
            )
            for row in every
        ]
    if planned:
        series.append(
            Series(
                name="plan",
                points=[(float(plan.strategy.devices), value) for plan, value in planned],
                says=[f"{plan.strategy.name}: {_rate(value)} samples/s" for plan, value in planned],
                colour=SERIES_COLOURS[1],
                line=False,
                size=7.0,
            )
        )
    rows += [
        (
            f"plan: {plan.strategy.name}",
            f"{plan.premises.global_batch_size:,} in all",
            f"{plan.strategy.devices:,}",
            _rate(value),
            " to ".join(
                _rate(plan.premises.global_batch_size / end) if end > 0 else "–"
                for end in reversed(plan.prediction.interval_s)
            ),
            *("–", "–", "–"),
        )
        for plan, value in planned
    ]
    counts = sorted({float(row.devices) for every in held for row in every if row.fits})
    svg = curve_chart(
        "Throughput by devices",
        series,
        ChartAxis(title="devices", log=True, ticks=counts if len(counts) <= 12 else ()),
        ChartAxis(title="throughput [samples/s]", log=True),
    )
    table = DataTable(
        columns=("exchange", "batch", "devices", "samples/s", "90 % interval", "speedup", "of ideal", "limited by"),
        rows=rows,
        words=frozenset({0, 1, 7}),
    )
    return Section(
        id="scaling",
        title="Throughput by devices",
        content=[
            Chart(svg=svg, table=table, caption="Bands: 90 % intervals. Ideal: one device, as many times as devices.")
        ],
        is_detail=True,
    )


def _parts_section(study: ScalingStudy, rows: Sequence[ScalingRow], number: int, legend: Sequence[str]) -> Section:
    """The rows of a batch and a method, with the parts of a step.

    Times of the table are in milliseconds; where these would be longer than their columns, in seconds or hours, and the
    title says so.
    """
    first, unit, fitting = rows[0], _unit(rows), [row for row in rows if row.fits]
    batch = f"batch {_batch(first, study.mode)} {'in all' if study.mode == 'strong' else 'a device'}"
    title = f"{first.sync}, {batch}" + ("" if unit == "ms" else f", times in {unit}")
    above = [f"^ {row.devices} GPUs: {row.why_above_linear}." for row in rows if row.why_above_linear]
    table = DataTable(
        columns=(*_COLUMNS, "limit", "memory"),
        rows=[_cells(row, unit) for row in rows],
        words=frozenset({len(_COLUMNS)}),
        caption="\n".join([*above, *legend]),
    )
    drawn_in, size = time_unit(max(row.step_time_s for row in fitting))
    svg = bar_chart(
        "Parts of a step by devices",
        [
            Bar(
                name=format_count(row.devices, "device"),
                parts=[
                    seconds / size
                    for seconds in (
                        *(row.fp_bp_s, row.exposed_communication_s, row.update_s),
                        *(row.feeding_s, row.overhead_s),
                    )
                ],
                note=f"{row.step_time_s / size:,.3g}",
            )
            for row in fitting
        ],
        _PARTS,
        ChartAxis(title=f"time of a step [{drawn_in}]"),
        names="devices",
    )
    name = "parts" if number == 1 else f"parts-{number}"
    return Section(id=name, title=title, content=[Chart(svg=svg, table=table)])


def _memory_section(rows: Sequence[ScalingRow]) -> Section:
    card = max((row.card_bytes for row in rows), default=0)
    table = DataTable(
        columns=("exchange", "batch of a device", "devices", "peak", "device has", "fits"),
        rows=[
            (
                row.sync,
                f"{row.local_batch_size:,}",
                f"{row.devices:,}",
                format_bytes(row.peak_bytes),
                format_bytes(row.card_bytes),
                "yes" if row.fits else "no",
            )
            for row in rows
        ],
        words=frozenset({0, 5}),
    )
    svg = bar_chart(
        "Memory of the fullest rank",
        [
            Bar(
                name=f"{row.devices} × {row.local_batch_size}",
                parts=[row.peak_bytes / 2**30],
                note=f"{row.peak_bytes / 2**30:.3g}",
            )
            for row in rows[:20]
        ],
        [("memory at the peak", "var(--series-1)")],
        ChartAxis(title="memory of the fullest rank [GiB]"),
        limit=LimitLine(name=f"a device has {format_bytes(card)}", at=card / 2**30) if card else None,
    )
    return Section(
        id="memory",
        title="Memory with the budget",
        content=[Chart(svg=svg, table=table, caption="Bars: devices × samples of each.")],
        is_detail=True,
    )


def faster_lines(study: ScalingStudy) -> list[str]:
    """Which method is the fastest of each batch and number of devices, or that this is not sure."""
    return [f"{faster.devices} x {faster.local_batch_size}: {_faster_words(faster)}" for faster in study.faster]


def _faster_words(faster: FasterMethod) -> str:
    ratios = ", ".join(
        f"{ratio.ratio:.2f} times as fast as {sync} ({format_span(*(f'{end:.2f}' for end in ratio.interval))})"
        for sync, ratio in faster.ratios.items()
    )
    if faster.sync is None:
        return f"not sure: {faster.best}, {ratios}, depending on costs without a measurement"
    return f"{faster.best}, {ratios}"


_SHORT = {
    "compute": "compute",
    LIMITERS["launches"]: "launch",
    "communication": "comm",
    LIMITERS["update"]: "update",
    LIMITERS["feeding"]: "feed",
    "loading": "load",
}
_COLUMNS = ("GPUs", "samples/s", "±", "speedup", "eff.", "FP+BP", "overlap", "exposed", "optim", "other")
_LAYERS = 4
_UNITS = {"ms": 1e-3, "s": 1.0, "h": 3600.0}
# Of a unit, so that it takes five characters.
_MOST = 9999.5


def _cells(row: ScalingRow, unit: str) -> list[str]:
    peak = row.peak_bytes / 2**30
    if not row.fits:
        # It cannot be run, so it has no throughput.
        blank = ["–"] * (len(_COLUMNS) - 1)
        return [str(row.devices), *blank, "memory", f"{_size(peak)}!"]
    return [
        str(row.devices),
        _rate(row.samples_per_s),
        f"{100 * (row.interval[1] - row.interval[0]) / 2 / row.samples_per_s:.0f}%",
        f"{row.speedup:.2f}{'^' if row.why_above_linear else ''}",
        f"{100 * row.efficiency:.0f}%",
        *(_time(seconds, unit) for seconds in _times(row)),
        _SHORT.get(row.limiter, row.limiter),
        _size(peak),
    ]


def _size(gib: float) -> str:
    """Memory in a narrow column: three digits."""
    return f"{1024 * gib:.0f}M" if gib < 0.5 else f"{gib:.{1 if gib < 99.95 else 0}f}G"


def _times(row: ScalingRow) -> tuple[float, ...]:
    """The parts of a step that are shown [s]."""
    exchange = row.overlapped_communication_s, row.exposed_communication_s
    return row.fp_bp_s, *exchange, row.update_s, row.overhead_s + row.feeding_s


def _unit(rows: Sequence[ScalingRow]) -> str:
    """The smallest unit in which no time is longer than its column."""
    longest_s = max(seconds for row in rows for seconds in _times(row))
    return next((unit for unit, size in _UNITS.items() if longest_s < _MOST * size), "h")


def _time(seconds: float, unit: str) -> str:
    """A time in a unit; milliseconds to a tenth, longer ones to as much as five characters hold."""
    value = seconds / _UNITS[unit]
    if value >= 999.95:
        return f"{value:,.0f}"
    decimals = 1 if unit == "ms" or value >= 99.995 else 2 if value >= 9.9995 else 3
    return f"{value:.{decimals}f}"


def _rate(samples_per_s: float) -> str:
    return rate(samples_per_s) if samples_per_s < 9_999_999.5 else f"{samples_per_s / 1e6:,.1f}M"


def layer_lines(study: ScalingStudy) -> list[str]:
    """Which layers the largest groups wait for."""
    lines = []
    for row in worst_waits(study):
        layers = ", ".join(
            f"{layer.module} ({format_bytes(layer.nbytes)}, {_wait(layer.exposed_s)})"
            for layer in row.exposed[:_LAYERS]
        )
        lines.append(f"{_place(row)}: {layers}")
    return lines


def feeding_lines(study: ScalingStudy) -> list[str]:
    """From how many devices on the input pipeline limits."""
    lines = []
    for limit in study.input_pipeline:
        batch = limit.local_batch_size or limit.global_batch_size
        what = f"{limit.sync}, batch {batch} {'in all' if limit.local_batch_size is None else 'a device'}"
        first, last = limit.first, limit.tried[-1] if limit.tried else None
        if last is None:
            lines.append(f"{what}: no number of devices has equal shares")
        elif first is None:
            most = max(limit.tried, key=lambda one: one.wanted_samples_per_s)
            lines.append(
                f"{what}: at no number of devices up to {last.devices}; {most.devices} take "
                f"{most.wanted_samples_per_s:,.0f} {study.unit}/s a node, {_loading_words(most)}"
            )
        else:
            again = f", but not on {', '.join(map(str, limit.free_again))}" if limit.free_again else ""
            by = RESOURCES[first.limit or "thread"]
            lines.append(
                f"{what}: from {format_count(first.devices, 'device')} on{again}, by {by}: "
                f"a node would take {first.wanted_samples_per_s:,.0f} {study.unit}/s and gets "
                f"{first.samples_per_s:,.0f}, {_loading_words(first)}"
            )
    return lines


def _loading_words(count: FedCount) -> str:
    return f"with {format_count(count.workers, 'worker')} a device" if count.workers else "loaded in line"


def _wait(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1.0 else format_seconds(seconds)


def machine_lines(study: ScalingStudy) -> list[str]:
    """Machines of each set-up that has machines as servers, and costs where a price is given."""
    lines = []
    for row in study.rows:
        if not row.fits or (not row.server_machines and row.cost_of_million_samples is None):
            continue
        line = f"{_place(row)}: {format_count(row.nodes, 'node')}"
        if row.server_machines:
            line += f" and {format_count(row.server_machines, 'machine')} without devices, as servers"
        if row.cost_of_million_samples is not None:
            line += f"; {row.cost_of_million_samples:,.2f} {study.currency} for a million samples"
        lines.append(line)
    return lines


def worst_waits(study: ScalingStudy) -> list[ScalingRow]:
    """For each method the set-up that waits for layers the longest, as a share of its step."""
    worst: dict[str, ScalingRow] = {}
    for row in study.rows:
        before = worst.get(row.sync)
        if row.fits and row.exposed and (before is None or _waited(row) > _waited(before)):
            worst[row.sync] = row
    return list(worst.values())


def _waited(row: ScalingRow) -> float:
    return row.exposed_communication_s / row.step_time_s


def _legend(study: ScalingStudy, *, in_ms: bool) -> list[str]:
    """What the columns of the tables are."""
    data = ", waits for data" if study.input_pipeline else ""
    return [
        f"{'ms' if in_ms else 'Parts'} of a step; FP+BP: forward and backward, during the exchange; overlap, exposed: "
        f"communication during it and not; optim: update; other: calls, copies into buffers, waits for the "
        f"slowest{data}; ±: half of the 90 % interval; speedup: by one device; eff.: that by the devices; limit: "
        "bottleneck; memory: of the rank that needs the most, G: GiB, M: MiB; !: more than a device has, so that it "
        "cannot be run.",
    ]


def _place(row: ScalingRow) -> str:
    return f"{row.sync}, {row.devices} x {row.local_batch_size}"


def verdict_lines(study: ScalingStudy) -> list[str]:
    """What does not fit, and the largest batch that does; else the throughput of the fastest row.

    Args:
        study: with at least one row
    """
    lines = [_shortage_line(study, one) for one in study.does_not_fit]
    fitting = [row for row in study.rows if row.fits]
    if not fitting:
        return lines
    best = max(fitting, key=lambda row: (row.samples_per_s, -row.devices))
    lines.append(
        f"{study.job}: {_rate(best.samples_per_s)} {study.unit}/s on {format_count(best.devices, 'device')} of "
        f"{study.cluster} with {best.local_batch_size} on each by {best.sync}, {best.speedup:,.1f} times one "
        f"({100 * best.efficiency:.0f} %); limited by {best.limiter}."
    )
    return lines


def _shortage_line(study: ScalingStudy, short: MemoryShortage) -> str:
    batch = f"batch {short.batch}{' in all' if short.strong else ' a device'}"
    where = f" on {', '.join(map(str, short.devices))} devices" if short.fitting else ""
    line = (
        f"{study.job} does not fit{where}: {batch} needs {format_bytes(short.needed_bytes)}, {study.device} has "
        f"{format_bytes(short.card_bytes)}."
    )
    if short.largest:
        return f"{line} The largest batch that fits: {short.largest} a device."
    return (
        f"{line} Not even one sample fits: parameters, gradients and optimizer state take "
        f"{format_bytes(short.state_bytes)} on each device; shard them (ZeRO, tensor parallelism, pipeline)."
    )
