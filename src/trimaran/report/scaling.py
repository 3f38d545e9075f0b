"""A scaling study as values: throughput of a job on numbers of devices, what limits it, what would help.

A scaling study for people: one table a batch and method, readable at 80 columns and without colour.

The names of the columns fill 80 columns, so that no figure may be longer than its column's name: times have at most
five characters, in a unit that the whole table shares.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimaran.base.precision import AS_ASKED, precision_words
from trimaran.base.remedies import Remedy
from trimaran.base.units import format_bytes, format_count, format_seconds, format_span
from trimaran.pricing.exchange.step import ScaledStep
from trimaran.pricing.input_pipeline import RESOURCES, Resource
from trimaran.report.remedies import remedies_document, remedy_table
from trimaran.report.tables import add_figures, add_words, frame_table, page_text
from trimaran.simulator.exchange_comparison import Ratio

Mode = Literal["weak", "strong"]
"""Weak: each device has its batch, however many there are. Strong: all devices share one batch."""

LIMITERS: Mapping[str, str] = {
    "launches": "compute: kernel launches",
    "update": "compute: weight update",
    "feeding": "input pipeline",
}
"""Names of parts that a plan puts together, or calls otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One set-up of the study.

    Attributes:
        step: the step of each rank, taken apart
        nodes: that the devices are in
        samples_per_s: of all devices together [samples/s]
        low: lower end of its 90 % interval [samples/s]
        high: upper end [samples/s]
        speedup: against one device, with the same batch a device (weak) or in all (strong)
        efficiency: speedup by devices
        peak_bytes: memory of the rank that needs the most, as its framework's allocator counts [bytes]
        own_peak_bytes: memory of a rank that owns no tensor of others [bytes]
        card_bytes: memory of a device, as its driver reports [bytes]
        server_machines: machines without devices, as servers, in addition to the nodes
        exchange_low: samples/s with all that nobody has measured of the exchange at its slow end
        exchange_high: the same at its fast end
        cost_of_million: of a million samples, server machines included; None: no price is given [currency]
        fits: whether the rank that needs the most fits its device, with what no allocator counts
        why_above_linear: why the speedup is above the number of devices; empty where it is not
    """

    step: ScaledStep
    nodes: int
    samples_per_s: float
    low: float
    high: float
    speedup: float
    efficiency: float
    peak_bytes: int
    own_peak_bytes: int
    card_bytes: int
    fits: bool
    why_above_linear: str = ""
    server_machines: int = 0
    exchange_low: float = 0.0
    exchange_high: float = 0.0
    cost_of_million: float | None = None

    @property
    def limiter(self) -> str:
        """The bottleneck of the step, as plans name it, then the part of it; memory where it does not fit."""
        return LIMITERS.get(self.step.limiter, self.step.limiter) if self.fits else "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterMethod:
    """Which method of exchange is the fastest for a batch and a number of devices.

    Attributes:
        local_batch: samples of a device
        devices: in the group
        sync: the fastest; None: not sure, as it depends on constants that nobody has measured
        best: the fastest with every constant at its value
        ratios: speed of `best` by that of each other method, between the ends of the constants
    """

    local_batch: int
    devices: int
    sync: str | None
    best: str
    ratios: Mapping[str, Ratio]


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
    batch: int
    strong: bool
    devices: tuple[int, ...]
    fitting: tuple[int, ...]
    needed_bytes: int
    card_bytes: int
    state_bytes: int
    largest: int


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

    devices: int
    limit: Resource | None
    workers: int
    wanted_samples_per_s: float
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingLimit:
    """From how many devices on the input pipeline limits.

    Attributes:
        sync: how gradients are exchanged
        batch: samples of each device, or of all
        strong: they are of all
        tried: numbers of devices, ascending
    """

    sync: str
    batch: int
    strong: bool
    tried: tuple[FedCount, ...]

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
        currency: of costs; "" where no price is given
        advice: remedies for the largest groups, the largest gain first
        notes: what was assumed
        source: of the times
        feeding: from how many devices on the input pipeline limits, by batch and method; empty: data are always ready
        shortages: batches that do not fit on all of the devices; of each the rows of the largest batch that fits
            follow its own, where each device has its batch
    """

    job: str
    cluster: str
    device: str
    precision: str
    precision_source: str = AS_ASKED
    software: str
    mode: Mode
    unit: str
    rows: tuple[ScalingRow, ...]
    advice: tuple[Remedy, ...]
    notes: tuple[str, ...]
    source: str
    faster: tuple[FasterMethod, ...] = ()
    currency: str = ""
    feeding: tuple[FeedingLimit, ...] = ()
    shortages: tuple[MemoryShortage, ...] = ()

    def __str__(self) -> str:
        return page_text(lambda out: print_study(out, self))


# ---------------------------------------------------------------------------------------------------------------------
# A scaling study for programs: plain data in bytes, seconds and samples


def study_document(study: ScalingStudy) -> dict[str, Any]:
    """The study as plain data; with an input pipeline also from how many devices on that limits."""
    document: dict[str, Any] = {
        "job": study.job,
        "cluster": study.cluster,
        "device": study.device,
        "precision": study.precision,
        "precision_source": study.precision_source,
        "software": study.software,
        "mode": study.mode,
        "source": study.source,
        "rows": [row_document(row) for row in study.rows],
        "faster": [_faster_document(faster) for faster in study.faster],
        "currency": study.currency or None,
        "advice": remedies_document(study.advice),
        "notes": list(study.notes),
    }
    if any(not one.fitting for one in study.shortages):
        # Where some of the devices fit, their rows say it.
        document["does_not_fit"] = [asdict(one) for one in study.shortages]
    if study.feeding:
        document["input_pipeline"] = [_limit_document(one) for one in study.feeding]
    return document


def _limit_document(limit: FeedingLimit) -> dict[str, Any]:
    return {
        "sync": limit.sync,
        "global_batch_size" if limit.strong else "local_batch_size": limit.batch,
        "limits_from_devices": None if limit.first is None else limit.first.devices,
        "limits_by": None if limit.first is None else limit.first.limit,
        "tried": [asdict(one) for one in limit.tried],
    }


def _faster_document(faster: FasterMethod) -> dict[str, Any]:
    return {
        "local_batch_size": faster.local_batch,
        "devices": faster.devices,
        "sync": faster.sync,
        "best": faster.best,
        "ratios": {
            sync: {"ratio": ratio.value, "interval": [ratio.low, ratio.high]} for sync, ratio in faster.ratios.items()
        },
    }


def faster_lines(study: ScalingStudy) -> list[str]:
    """Which method is the fastest of each batch and number of devices, or that this is not sure."""
    return [f"{faster.devices} x {faster.local_batch}: {_faster_words(faster)}" for faster in study.faster]


def _faster_words(faster: FasterMethod) -> str:
    ratios = ", ".join(
        f"{ratio.value:.2f} times as fast as {sync} ({format_span(f'{ratio.low:.2f}', f'{ratio.high:.2f}')})"
        for sync, ratio in faster.ratios.items()
    )
    if faster.sync is None:
        return f"not sure: {faster.best}, {ratios}, depending on costs without a measurement"
    return f"{faster.best}, {ratios}"


def row_document(row: ScalingRow) -> dict[str, Any]:
    """One set-up; with an input pipeline also how it is fed, and `why_above_linear` where it is that much faster."""
    step = row.step
    document: dict[str, Any] = {
        **({"why_above_linear": row.why_above_linear} if row.why_above_linear else {}),
        "devices": step.devices,
        "local_batch_size": step.local_batch,
        "sync": step.sync,
        "samples_per_s": row.samples_per_s,
        "interval": [row.low, row.high],
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "fp_bp_s": step.fp_bp_s,
        "wu_s": step.wu_s,
        "wu_exposed_s": step.wu_exposed_s,
        "limiter": row.limiter,
        "peak_bytes": row.peak_bytes,
        "fits": row.fits,
        "global_batch_size": step.local_batch * step.devices,
        "nodes": row.nodes,
        "server_machines": row.server_machines,
        "exchange_interval": [row.exchange_low, row.exchange_high],
        "cost_of_million_samples": row.cost_of_million,
        "step_time_s": step.step.seconds,
        "forward_s": step.forward_s,
        "backward_s": step.backward_s,
        "communication_s": step.communication_s,
        "exposed_communication_s": step.exposed_communication_s,
        "overlapped_communication_s": step.communication_s - step.exposed_communication_s,
        "update_s": step.update_s,
        "overhead_s": step.overhead_s,
        "feeding_s": step.feeding_s,
        "own_peak_bytes": row.own_peak_bytes,
        "card_bytes": row.card_bytes,
        "exposed": [asdict(layer) for layer in step.exposed],
    }
    if step.fed is not None:
        document["feeding"] = {"workers": step.fed.workers, "limited_by": step.fed.limit}
    return document


_SHORT = {
    "compute": "compute",
    "launches": "launch",
    "communication": "comm",
    "update": "update",
    "feeding": "feed",
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
        batch = row.step.local_batch * (row.step.devices if strong else 1)
        found.setdefault((batch, row.step.sync), []).append(row)
    return list(found.values())


def _table(study: ScalingStudy, rows: Sequence[ScalingRow]) -> Table:
    first, unit = rows[0].step, _unit(rows)
    batch = first.local_batch * (first.devices if study.mode == "strong" else 1)
    title = f"{first.sync}, batch {batch} {'in all' if study.mode == 'strong' else 'a device'}"
    table = frame_table(title if unit == "ms" else f"{title}, times in {unit}")
    add_figures(table, *_COLUMNS)
    add_words(table, "limit", no_wrap=True)
    add_figures(table, "memory")
    for row in rows:
        table.add_row(*_cells(row, unit))
    above = [row for row in rows if row.why_above_linear]
    if above:
        table.caption = "\n".join(f"^ {row.step.devices} GPUs: {row.why_above_linear}" for row in above)
    return table


def _cells(row: ScalingRow, unit: str) -> list[str]:
    step, peak = row.step, row.peak_bytes / 2**30
    if not row.fits:
        # It cannot be run, so it has no throughput.
        blank = ["–"] * (len(_COLUMNS) - 1)
        return [str(step.devices), *blank, "memory", f"{_size(peak)}!"]
    return [
        str(step.devices),
        _rate(row.samples_per_s),
        f"{100 * (row.high - row.low) / 2 / row.samples_per_s:.0f}%",
        f"{row.speedup:.2f}{'^' if row.why_above_linear else ''}",
        f"{100 * row.efficiency:.0f}%",
        *(_time(seconds, unit) for seconds in _times(step)),
        _SHORT[step.limiter],
        _size(peak),
    ]


def _size(gib: float) -> str:
    """Memory in a narrow column: three digits."""
    return f"{1024 * gib:.0f}M" if gib < 0.5 else f"{gib:.{1 if gib < 99.95 else 0}f}G"


def _times(step: ScaledStep) -> tuple[float, ...]:
    """The parts of a step that are shown [s]."""
    overlapped_s = step.communication_s - step.exposed_communication_s
    return step.fp_bp_s, overlapped_s, step.exposed_communication_s, step.update_s, step.overhead_s + step.feeding_s


def _unit(rows: Sequence[ScalingRow]) -> str:
    """The smallest unit in which no time is longer than its column."""
    longest_s = max(seconds for row in rows for seconds in _times(row.step))
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
            for layer in row.step.exposed[:_LAYERS]
        )
        lines.append(f"{_place(row)}: {layers}")
    return lines


def feeding_lines(study: ScalingStudy) -> list[str]:
    """From how many devices on the input pipeline limits."""
    lines = []
    for limit in study.feeding:
        what = f"{limit.sync}, batch {limit.batch} {'in all' if limit.strong else 'a device'}"
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
        if not row.fits or (not row.server_machines and row.cost_of_million is None):
            continue
        line = f"{_place(row)}: {format_count(row.nodes, 'node')}"
        if row.server_machines:
            line += f" and {format_count(row.server_machines, 'machine')} without devices, as servers"
        if row.cost_of_million is not None:
            line += f"; {row.cost_of_million:,.2f} {study.currency} for a million samples"
        lines.append(line)
    return lines


def worst_waits(study: ScalingStudy) -> list[ScalingRow]:
    """For each method the set-up that waits for layers the longest, as a share of its step."""
    worst: dict[str, ScalingRow] = {}
    for row in study.rows:
        before = worst.get(row.step.sync)
        if row.fits and row.step.exposed and (before is None or _waited(row) > _waited(before)):
            worst[row.step.sync] = row
    return list(worst.values())


def _waited(row: ScalingRow) -> float:
    return row.step.exposed_communication_s / row.step.step.seconds


def best_advice(advice: Iterable[Remedy]) -> list[Remedy]:
    """Each remedy where it helps the most, the largest gain first."""
    best: dict[str, Remedy] = {}
    for remedy in advice:
        best.setdefault(remedy.id, remedy)
    return list(best.values())[:6]


def legend_lines(study: ScalingStudy) -> list[str]:
    """The legend of the columns."""
    in_ms = {_unit(rows) for rows in groups(study.rows, strong=study.mode == "strong")} == {"ms"}
    data = ", waits for data" if study.feeding else ""
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
    return f"{row.step.sync}, {row.step.devices} x {row.step.local_batch}"


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
        out.print(remedy_table(best_advice(study.advice)), "")
    for line in legend_lines(study):
        out.print(f"[dim]{escape(line)}[/]")


def verdict_lines(study: ScalingStudy) -> list[str]:
    """What does not fit, and the largest batch that does; else the throughput of the fastest row.

    Args:
        study: with at least one row
    """
    lines = [_shortage_line(study, one) for one in study.shortages]
    fitting = [row for row in study.rows if row.fits]
    if not fitting:
        return lines
    best = max(fitting, key=lambda row: (row.samples_per_s, -row.step.devices))
    step = best.step
    lines.append(
        f"{study.job}: {_rate(best.samples_per_s)} {study.unit}/s on {format_count(step.devices, 'device')} of "
        f"{study.cluster} with {step.local_batch} on each by {step.sync}, {best.speedup:.1f} times one "
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
