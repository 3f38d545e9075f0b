"""A scaling study as values: throughput of a job on numbers of devices, what limits it, what would help.

A scaling study for people: one table a batch and method, readable at 80 columns and without colour.

The names of the columns fill 80 columns, so that no figure may be longer than its column's name: times have at most
five characters, in a unit that the whole table shares.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimaran.base.decoding import Count, Positive
from trimaran.base.html import DataTable
from trimaran.base.precision import AS_ASKED, precision_words
from trimaran.base.remedies import Remedy
from trimaran.base.units import format_bytes, format_count, format_seconds, format_span
from trimaran.pricing.exchange.step import ExposedGradient, StepSums, Sync
from trimaran.pricing.input_pipeline import RESOURCES, Resource
from trimaran.report.remedies import remedy_table
from trimaran.report.tables import page_text, table_view

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
        return page_text(lambda out: print_study(out, self))


# ---------------------------------------------------------------------------------------------------------------------
# Lines and tables of a scaling study


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


def study_tables(study: ScalingStudy) -> list[Table]:
    """The rows, a table for each batch and method.

    Times are in milliseconds of a step; where these would be longer than their columns, in seconds or hours, and the
    title says so.
    """
    found = groups(study.rows, strong=study.mode == "strong")
    # The verdict says what does not fit at all.
    return [_table(study, rows) for rows in found if any(row.fits for row in rows)]


def groups(rows: Iterable[ScalingRow], *, strong: bool) -> list[list[ScalingRow]]:
    """Rows of one batch and one method together, in order.

    Args:
        rows: of a study
        strong: the batch is that of all devices
    """
    found: dict[tuple[int, str], list[ScalingRow]] = {}
    for row in rows:
        batch = row.local_batch_size * (row.devices if strong else 1)
        found.setdefault((batch, row.sync), []).append(row)
    return list(found.values())


def _table(study: ScalingStudy, rows: Sequence[ScalingRow]) -> Table:
    first, unit = rows[0], _unit(rows)
    batch = first.local_batch_size * (first.devices if study.mode == "strong" else 1)
    title = f"{first.sync}, batch {batch} {'in all' if study.mode == 'strong' else 'a device'}"
    above = "\n".join(f"^ {row.devices} GPUs: {row.why_above_linear}" for row in rows if row.why_above_linear)
    columns, cells = (*_COLUMNS, "limit", "memory"), [_cells(row, unit) for row in rows]
    table = DataTable(columns=columns, rows=cells, words=frozenset({len(_COLUMNS)}), caption=above)
    return table_view(table, title if unit == "ms" else f"{title}, times in {unit}")


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
    if samples_per_s < 10:
        return f"{samples_per_s:.2f}" if samples_per_s >= 0.1 else f"{samples_per_s:.2g}"
    return f"{samples_per_s:,.0f}" if samples_per_s < 9_999_999.5 else f"{samples_per_s / 1e6:,.1f}M"


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


def legend_lines(study: ScalingStudy) -> list[str]:
    """The legend of the columns."""
    in_ms = {_unit(rows) for rows in groups(study.rows, strong=study.mode == "strong")} == {"ms"}
    data = ", waits for data" if study.input_pipeline else ""
    made = [f"Times are {study.source}; {study.software}.", *study.notes]
    if not study_tables(study):
        return made
    return [
        f"{'ms' if in_ms else 'Parts'} of a step; FP+BP: forward and backward, during the exchange; overlap, exposed: "
        f"communication during it and not; optim: update; other: calls, copies into buffers, waits for the "
        f"slowest{data}; ±: half of the 90 % interval.",
        "memory: of the rank that needs the most, G: GiB, M: MiB; !: more than a device has, so that it cannot be run.",
        "speedup: by one device; eff.: that by the devices; limit: bottleneck.",
        *made,
    ]


def _place(row: ScalingRow) -> str:
    return f"{row.sync}, {row.devices} x {row.local_batch_size}"


# ---------------------------------------------------------------------------------------------------------------------
# How a scaling study looks for people


def print_study(out: Console, study: ScalingStudy) -> None:
    """Print the verdict, the tables, what the step waits for, what would help, and what the figures mean."""
    for line in verdict_lines(study):
        out.print(f"[bold]{escape(line)}[/]")
    out.print()
    out.print(
        f"[bold]{escape(study.job)}[/] on {escape(study.cluster)} ({escape(study.device)}), "
        f"{precision_words(study.precision, study.precision_source)}, "
        f"{study.mode} scaling\n"
    )
    for table in study_tables(study):
        out.print(table, "")
    _print_list(out, "Fastest method of exchange, with the ends of its ratio to the others", faster_lines(study))
    _print_list(out, "Machines and cost", machine_lines(study))
    _print_list(out, "Where the input pipeline limits", feeding_lines(study))
    _print_list(out, "Layers whose gradients do not overlap", layer_lines(study))
    if study.advice:
        out.print(remedy_table(study.advice), "")
    for line in legend_lines(study):
        out.print(f"[dim]{escape(line)}[/]")


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


def _print_list(out: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    out.print(f"[bold]{title}[/]")
    for line in lines:
        out.print(Padding(Text(line), (0, 0, 0, 2)))
    out.print()
