"""Where a hybrid of data and model parallelism begins to reach the target sooner than data parallelism, as values."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import msgspec

from trimaran.base.decoding import Count, Positive
from trimaran.base.html import DataTable
from trimaran.base.precision import AS_ASKED, precision_words
from trimaran.base.units import format_duration, format_span
from trimaran.convergence.types import Unit
from trimaran.report.page.charts import SERIES_COLOURS, ChartAxis, LimitLine, Series, curve_chart, time_unit
from trimaran.report.page.layout import Absent, Chart, Page, Section, Words, those_known
from trimaran.report.page.terminal import print_page
from trimaran.report.tables import page_text

Basis = Literal["paper", "ours"]
"""Paper: a fixed local batch, SE = 1, equal devices. Ours: local batch free, predicted exchange, devices may be
idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The best way to run a batch on several devices by model parallelism alone.

    Attributes:
        devices: M
        local_batch_size: samples of the worker
        strategy: of the plan; "one device" where no model parallelism is faster
        speedup: SU^M, over one device with the same batch
        speedup_interval: its 90 % interval
        speedup_links_half: the speedup on links half as fast
        speedup_links_double: the speedup on links twice as fast
    """

    devices: Count
    local_batch_size: Count
    strategy: str
    speedup: Positive
    speedup_interval: tuple[Positive, Positive]
    speedup_links_half: Positive
    speedup_links_double: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWay:
    """One way to train on a number of devices.

    Attributes:
        devices: that it uses
        model_parallel_width: devices of a worker; 1 is data parallelism
        local_batch_size: samples of a worker
        step_time_s: time of a step [s]
        worker_alone_s: of it, what a worker takes without the others [s]
        need: samples to the target, in the unit of the curve; 1 without a curve
        time_to_accuracy_s: [s]; None where the curve says only how batches compare
    """

    derived: ClassVar = ("workers", "global_batch_size")
    devices: Count
    model_parallel_width: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    local_batch_size: Count
    step_time_s: Positive
    worker_alone_s: Positive
    need: float = 1.0
    time_to_accuracy_s: Positive | None = None

    @property
    def workers(self) -> int:
        """Data-parallel workers."""
        return self.devices // self.model_parallel_width

    @property
    def global_batch_size(self) -> int:
        """Samples of an update."""
        return self.workers * self.local_batch_size

    @property
    def samples_per_s(self) -> float:
        """Throughput [samples/s]."""
        return self.global_batch_size / self.step_time_s if self.step_time_s else 0.0

    @property
    def name(self) -> str:
        """Such as "256 × 8" or "128 of 2 × 64": workers, and samples of each."""
        return f"{self.workers}{self._of} × {self.local_batch_size}"

    @property
    def _of(self) -> str:
        return f" of {self.model_parallel_width}" if self.model_parallel_width > 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A number of devices.

    Attributes:
        devices: that there are
        data_parallel: best data parallelism
        hybrid: best hybrid
        speedup_over_dp: time of the former by that of the latter; above 1 the hybrid is ahead; None: there is no curve
        speedup_interval: its 90 % interval; None: there is no curve
        likely: share of the draws in which the hybrid is ahead; None: there is no curve
        equal_batch_limit: largest global batch at which the hybrid's step is shorter than that of data parallelism with
            the same batch; None: at none
        needed_epoch_ratio: epochs of the batch at which data parallelism does the most samples a second, by epochs of
            the batch at which the hybrid would run: above it the hybrid is ahead; None: at no ratio
    """

    devices: Count
    data_parallel: TrainingWay
    hybrid: TrainingWay
    speedup_over_dp: Positive | None
    speedup_interval: tuple[Positive, Positive] | None
    likely: Positive | None
    equal_batch_limit: Count | None
    needed_epoch_ratio: Positive | None

    @property
    def ahead_by(self) -> float:
        """Time of data parallelism by that of the hybrid: to the target, or without a curve for a sample."""
        if self.speedup_over_dp is not None:
            return self.speedup_over_dp
        return self.hybrid.samples_per_s / self.data_parallel.samples_per_s if self.data_parallel.samples_per_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The crossover if something were otherwise.

    Attributes:
        change: such as "links twice as fast"
        crossover_devices: at which the hybrid is ahead then; None: at none of those that were asked for
    """

    change: str
    crossover_devices: Count | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """One width on one basis.

    Attributes:
        model_parallel_width: devices of a worker
        basis: how it is calculated
        worker: at the local batch of paper mode
        needed_speedup: of a worker, for as short a step as data parallelism has with the same global batch, without
            exchanges: T(b) / T(b / M); None where a share has no whole sample
        crossover_devices: fewest of those asked for at which the hybrid is ahead; None: at none, or no curve
        crossover_interval: 90 % of that; None: at none
        share_never: share of the draws in which it is ahead at none; None: there is no curve
        rows: by devices
        sensitivity: what it would be otherwise
        reason: in words
    """

    model_parallel_width: Count
    basis: Basis
    worker: Worker
    needed_speedup: Positive | None
    crossover_devices: Count | None
    crossover_interval: tuple[Count | None, Count | None]
    share_never: Positive | None
    rows: tuple[Row, ...]
    sensitivity: tuple[Sensitivity, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedCurve:
    """The convergence curve that is used.

    Attributes:
        name: as it was asked for
        task: what was trained to which target
        source: of the points
        unit: in what it counts
        range: smallest and largest measured batch
        projection: a study's projection rather than a measurement
        warnings: what the reader should know
    """

    name: str
    task: str
    source: str
    unit: Unit
    range: tuple[Count, Count]
    projection: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """All widths on both bases.

    Attributes:
        job: as asked for
        cluster: the machine, with as many nodes as the largest count needs
        device: of which it has many
        precision: in which is computed
        precision_source: who chose that
        software: framework and year
        local_batch_size: of a worker in paper mode
        devices: numbers of them, at least one
        curve: None where there is none
        crossings: by width, paper mode first
        notes: what was assumed
    """

    job: str
    cluster: str
    device: str
    precision: str
    precision_source: str = AS_ASKED
    software: str
    local_batch_size: Count
    devices: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    curve: UsedCurve | None
    crossings: tuple[Crossing, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return page_text(lambda out: print_page(out, crossover_page(self), on_a_screen=True))


# ---------------------------------------------------------------------------------------------------------------------
# The page of a crossover


def crossover_page(found: Crossover, _: Sequence[object] = (), asked: str = "") -> Page:
    """Where the hybrid is ahead, the best ways on each number of devices, and why.

    Args:
        found: the answer
        asked: command that asked; "": not known
    """
    curve, ours = found.curve, [one for one in found.crossings if one.basis == "ours"] or found.crossings
    command = f"trimaran crossover {shlex.quote(found.job)} --cluster {shlex.quote(found.cluster)}"
    absent = Absent(title="Time to accuracy", how=f"needs a curve: {command} --curve NAME --json")
    facts = [
        ("precision", precision_words(found.precision, found.precision_source)),
        ("software", found.software),
        ("local batch of paper mode", f"{found.local_batch_size:,}"),
    ]
    if curve is not None:
        batches = format_span(*(f"{end:,}" for end in curve.range), to="–")
        facts.append(("curve", f"{curve.name} ({curve.task}; batches {batches})"))
    return Page(
        kind="Crossover study",
        title=f"{found.job} on {found.cluster} ({found.device})",
        verdict=verdict_line(found),
        facts=facts,
        sections=those_known(
            _summary(found),
            _speedups(found.crossings, is_known=curve is not None),
            _times_to_accuracy(ours),
            Section(
                id="reasons",
                title="Why",
                content=[Words(lines=reason_lines(found), is_list=True)],
                is_wide=True,
                is_detail=True,
            ),
        ),
        absent=[absent] if curve is None else [],
        notes=[*(curve.warnings if curve else ()), *found.notes],
        command=f"{asked or command} --json",
        environment={} if curve is None else {"source of the curve": curve.source},
    )


def _summary(found: Crossover) -> Section:
    """One line a width: the worker, and from how many devices on it is ahead on each basis."""
    is_known = found.curve is not None
    rows = []
    for first in found.crossings:
        if first.basis == "paper":
            worker = first.worker
            ends = format_span(*(f"{end:.2f}" for end in worker.speedup_interval), to="–")
            speed = f"{worker.speedup:.2f} ({ends})"
            of_width = [one for one in found.crossings if one.model_parallel_width == first.model_parallel_width]
            ours = next((one for one in of_width if one.basis == "ours"), first)
            told = (_from(one, is_known=is_known) for one in (first, ours))
            rows.append((str(first.model_parallel_width), worker.strategy, speed, *told))
    table = DataTable(
        columns=("M", "worker", "SU^M", "paper mode", "ours"),
        rows=rows,
        words=frozenset({1}),
        caption="M: devices of a worker of the hybrid; SU^M: its speed by that of one device; paper mode: fixed local "
        "batch, exchange of gradients at no cost; ours: any local batch, predicted exchange"
        + ("; in brackets: 90 %." if is_known else "; epochs × n: data parallelism needs n times the epochs."),
    )
    where = "from this number of devices on" if is_known else f"where, on {max(found.devices)} devices,"
    return Section(id="summary", title=f"The hybrid is ahead {where}", content=[table], is_wide=True)


def _named(crossing: Crossing) -> str:
    return f"M = {crossing.model_parallel_width}, {crossing.basis}"


def _speedups(crossings: Sequence[Crossing], *, is_known: bool) -> Section | None:
    """The best ways on each number of devices, and how much sooner the hybrid reaches the target or does samples."""
    series, rows = [], []
    for one in crossings:
        known = [row for row in one.rows if row.ahead_by]
        series.append(
            Series(
                name=_named(one),
                points=[(float(row.devices), row.ahead_by) for row in known],
                ends=[row.speedup_interval or (row.ahead_by, row.ahead_by) for row in known],
                says=[f"{_named(one)}, {row.devices} devices: {row.ahead_by:.3f}" for row in known],
                colour=SERIES_COLOURS[(one.model_parallel_width.bit_length() - 2) % 5],
                dashed=one.basis == "paper",
                hollow=one.basis == "paper",
            )
        )
        rows += [
            (
                "" if number else f"{one.model_parallel_width}, {one.basis}",
                f"{row.devices:,}",
                row.data_parallel.name,
                row.hybrid.name,
                f"{row.ahead_by:.3f}",
                *_cells(row, is_known=is_known),
            )
            for number, row in enumerate(known)
        ]
    if not rows:
        return None
    counts = sorted({float(row.devices) for one in crossings for row in one.rows})
    compared = "time to accuracy, data parallelism / hybrid"
    caption = (
        "M, basis: of a worker, as above; data parallel, hybrid: workers × local batch, "
        "'32 of 2 × 64': workers of two; hybrid/DP: how much sooner the hybrid reaches the target, above 1 it is "
        "ahead; likely: share of 400 draws of curve, workers, exchange in which it is ahead."
    )
    if not is_known:
        compared = "samples a second, hybrid / data parallelism"
        caption = (
            "M, basis: of a worker, as above; data parallel, hybrid: workers × local batch with the most "
            "samples a second; hybrid/DP: samples a second, which may need more epochs; epochs needed: ratio of epochs "
            "above which the hybrid is ahead; largest same batch: largest global batch at which the hybrid's step is "
            "shorter; at smaller ones it may not be."
        )
    svg = curve_chart(
        "Speed of hybrid over data parallelism",
        series,
        ChartAxis(title="devices", log=True, ticks=counts if len(counts) <= 12 else ()),
        ChartAxis(title=compared, log=True),
        limits=[LimitLine(name="as soon as data parallelism", at=1.0)],
    )
    told = ("90 %", "likely") if is_known else ("epochs needed", "largest same batch")
    table = DataTable(
        columns=("M, basis", "GPUs", "data parallel", "hybrid", "hybrid/DP", *told), rows=rows, words=frozenset({0})
    )
    chart = Chart(svg=svg, table=table, caption=caption, is_open=True)
    return Section(id="crossover", title="Crossover with model parallelism", content=[chart], is_detail=True)


def _times_to_accuracy(crossings: Sequence[Crossing]) -> Section | None:
    """Time to accuracy of data parallelism and of the best hybrid, by devices."""
    data: dict[int, TrainingWay] = {}
    hybrid: dict[int, TrainingWay] = {}
    for one in crossings:
        for row in one.rows:
            for found, way in ((data, row.data_parallel), (hybrid, row.hybrid)):
                before = found.get(row.devices)
                if way.time_to_accuracy_s and (
                    before is None or way.time_to_accuracy_s < (before.time_to_accuracy_s or 0)
                ):
                    found[row.devices] = way
    if not data:
        return None
    times = [way.time_to_accuracy_s or 0.0 for found in (data, hybrid) for way in found.values()]
    unit, size = time_unit(max(times))
    series = [
        Series(
            name=name,
            points=[(float(count), (way.time_to_accuracy_s or 0.0) / size) for count, way in sorted(found.items())],
            says=[
                f"{count} devices: {format_duration(way.time_to_accuracy_s or 0)}"
                for count, way in sorted(found.items())
            ],
            colour=colour,
        )
        for name, found, colour in (
            ("data parallelism", data, SERIES_COLOURS[0]),
            ("best hybrid", hybrid, SERIES_COLOURS[1]),
        )
    ]
    ahead = [one.crossover_devices for one in crossings if one.crossover_devices]
    counts = sorted({float(count) for count in data})
    svg = curve_chart(
        "Time to accuracy by devices",
        series,
        ChartAxis(title="devices", log=True, ticks=counts if len(counts) <= 12 else ()),
        ChartAxis(title=f"time to accuracy [{unit}]", log=True),
        limits=[LimitLine(name=f"crossover at {min(ahead)}", at=float(min(ahead)), upright=True)] if ahead else [],
    )
    table = DataTable(
        columns=("devices", "data parallelism", "global batch", "best hybrid", "global batch of it"),
        rows=[
            (
                f"{count:,}",
                format_duration(way.time_to_accuracy_s or 0.0),
                f"{way.global_batch_size:,}",
                format_duration(hybrid[count].time_to_accuracy_s or 0.0) if count in hybrid else "–",
                f"{hybrid[count].global_batch_size:,}" if count in hybrid else "–",
            )
            for count, way in sorted(data.items())
        ],
        words=frozenset(),
    )
    return Section(id="training", title="Time to accuracy", content=[Chart(svg=svg, table=table)], is_detail=True)


def reason_lines(found: Crossover) -> list[str]:
    """Why, and what it would be otherwise."""
    said = ((one, otherwise(one)) for one in found.crossings)
    return [f"{_named(one)}: {one.reason}{f'; {other}' if other else ''}" for one, other in said]


def otherwise(crossing: Crossing) -> str:
    """What the crossover would be if something were otherwise; empty where nothing was tried."""
    tried = crossing.sensitivity
    changed = [
        f"{one.change}: {_count(one.crossover_devices)}"
        for one in tried
        if one.crossover_devices != crossing.crossover_devices
    ]
    if changed:
        return f"otherwise {'; '.join(changed)}"
    return "the same with every change of workers, curve or links that was tried" if tried else ""


def _from(crossing: Crossing, *, is_known: bool) -> str:
    if not is_known:
        return _needed(crossing)
    ends = format_span(*map(_count, crossing.crossover_interval), to="–")
    return f"{_count(crossing.crossover_devices)} ({ends})"


def _needed(crossing: Crossing) -> str:
    """The condition for a crossover, where there is no curve."""
    if not crossing.rows:
        return "never"
    last = crossing.rows[-1]
    if crossing.basis == "paper":
        return f"epochs {_times(last.needed_epoch_ratio)}"
    row = next((row for row in reversed(crossing.rows) if row.equal_batch_limit is not None), None)
    if row is None:
        return "never"
    return f"at batch {row.equal_batch_limit:,}" + ("" if row is last else f" on {row.devices}")


def _cells(row: Row, *, is_known: bool) -> tuple[str, ...]:
    if not is_known:
        limit = row.equal_batch_limit
        return _times(row.needed_epoch_ratio), "none" if limit is None else f"{limit:,}"
    ends = format_span(*(f"{end:.2f}" for end in row.speedup_interval or (0.0, 0.0)), to="–")
    return ends, f"{row.likely or 0.0:.0%}"


def _times(ratio: float | None) -> str:
    return "never" if ratio is None else f"× {ratio:.2f}"


def _count(devices: int | None) -> str:
    return "never" if devices is None else str(devices)


def verdict_line(found: Crossover) -> str:
    """From how many devices on which hybrid is ahead, over all widths and bases."""
    if found.curve is None:
        return f"{found.job}: from how many devices on a hybrid is ahead is not known without a curve (--curve NAME)."
    ours, paper = (
        _ahead([one for one in found.crossings if one.basis == basis and one.crossover_devices is not None])
        for basis in ("ours", "paper")
    )
    most = max(found.devices)
    said = f"workers of {ours}" if ours else f"more replicas stay ahead of model parallelism up to {most} devices"
    other = f"workers of {paper}" if paper else "more replicas stay ahead"
    return f"{found.job}: {said}; with exchange of gradients at no cost (paper mode) {other}."


def _ahead(crossings: Sequence[Crossing]) -> str:
    """Which worker is ahead first, and from how many devices on; "" where none is."""
    if not crossings:
        return ""
    first = min(crossings, key=lambda one: one.crossover_devices or 0)
    return f"{first.model_parallel_width} devices beat more replicas from {first.crossover_devices:,} devices on"
