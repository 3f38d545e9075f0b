"""Where a hybrid of data and model parallelism begins to reach the target sooner than data parallelism, as values."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimaran.base.precision import AS_ASKED, precision_words
from trimaran.base.units import format_span
from trimaran.convergence.types import Unit
from trimaran.report.tables import Joined, add_figures, frame_table, page_text

Basis = Literal["paper", "ours"]
"""Paper: a fixed local batch, SE = 1, equal devices. Ours: local batch free, predicted exchange, devices may be
idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The best way to run a batch on several devices by model parallelism alone.

    Attributes:
        width: devices, M
        batch: samples of the worker
        strategy: of the plan; "one device" where no model parallelism is faster
        speedup: SU^M, over one device with the same batch
        interval: its 90 % interval
        slow_links: the speedup on links half as fast
        fast_links: the speedup on links twice as fast
    """

    width: int
    batch: int
    strategy: str
    speedup: float
    interval: tuple[float, float]
    slow_links: float
    fast_links: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWay:
    """One way to train on a number of devices.

    Attributes:
        devices: that it uses
        width: devices of a worker; 1 is data parallelism
        local_batch: samples of a worker
        step_s: time of a step [s]
        alone_s: of it, what a worker takes without the others [s]
        need: samples to the target, in the unit of the curve; 1 without a curve
        time_s: to the target [s]; None where the curve says only how batches compare
    """

    devices: int
    width: int
    local_batch: int
    step_s: float
    alone_s: float
    need: float
    time_s: float | None = None

    @property
    def workers(self) -> int:
        """Data-parallel workers."""
        return self.devices // self.width

    @property
    def global_batch(self) -> int:
        """Samples of an update."""
        return self.workers * self.local_batch

    @property
    def name(self) -> str:
        """Such as "256 × 8" or "128 of 2 × 64": workers, and samples of each."""
        return f"{self.workers}{f' of {self.width}' if self.width > 1 else ''} × {self.local_batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A number of devices.

    Attributes:
        devices: that there are
        data: best data parallelism
        hybrid: best hybrid
        speedup: time of the former by that of the latter; above 1 the hybrid is ahead
        interval: its 90 % interval
        likely: share of the draws in which the hybrid is ahead
        equal_batch_limit: largest global batch at which the hybrid's step is shorter than that of data parallelism with
            the same batch; None: at none
        needed_epoch_ratio: epochs of the batch at which data parallelism does the most samples a second, by epochs of
            the batch at which the hybrid would run: above it the hybrid is ahead; None: at no ratio
    """

    devices: int
    data: TrainingWay
    hybrid: TrainingWay
    speedup: float
    interval: tuple[float, float]
    likely: float
    equal_batch_limit: int | None
    needed_epoch_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The crossover if something were otherwise.

    Attributes:
        change: such as "links twice as fast"
        devices: at which the hybrid is ahead then; None: at none of those that were asked for
    """

    change: str
    devices: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """One width on one basis.

    Attributes:
        width: devices of a worker
        basis: how it is calculated
        worker: at the local batch of paper mode
        needed_speedup: of a worker, for as short a step as data parallelism has with the same global batch, without
            exchanges: T(b) / T(b / M); None where a share has no whole sample
        devices: fewest of those asked for at which the hybrid is ahead; None: at none, or no curve
        interval: 90 % of that; None: at none
        never: share of the draws in which it is ahead at none
        rows: by devices
        sensitivities: what it would be otherwise
        reason: in words
    """

    width: int
    basis: Basis
    worker: Worker
    needed_speedup: float | None
    devices: int | None
    interval: tuple[int | None, int | None]
    never: float
    rows: tuple[Row, ...]
    sensitivities: tuple[Sensitivity, ...]
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
    range: tuple[int, int]
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
        local_batch: of a worker in paper mode
        counts: numbers of devices
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
    local_batch: int
    counts: tuple[int, ...]
    curve: UsedCurve | None
    crossings: tuple[Crossing, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return page_text(lambda out: print_crossover(out, self))


# ---------------------------------------------------------------------------------------------------------------------
# A crossover for programs: plain data in seconds and samples


def crossover_document(found: Crossover) -> dict[str, Any]:
    """The crossover as plain data; intervals are `[low, high]`, null where a hybrid is ahead at no count."""
    curve = found.curve
    return {
        "job": found.job,
        "cluster": found.cluster,
        "device": found.device,
        "precision": found.precision,
        "precision_source": found.precision_source,
        "software": found.software,
        "local_batch_size": found.local_batch,
        "devices": list(found.counts),
        "curve": None if curve is None else asdict(curve) | {"range": list(curve.range)},
        "crossings": [_crossing(crossing, is_known=curve is not None) for crossing in found.crossings],
        "notes": list(found.notes),
    }


def _crossing(crossing: Crossing, *, is_known: bool) -> dict[str, Any]:
    return {
        "model_parallel_width": crossing.width,
        "basis": crossing.basis,
        "crossover_devices": crossing.devices,
        "crossover_interval": list(crossing.interval),
        "share_never": crossing.never if is_known else None,
        "reason": crossing.reason,
        "worker": worker_document(crossing.worker),
        "needed_speedup": crossing.needed_speedup,
        "sensitivity": [
            {"change": entry.change, "crossover_devices": entry.devices} for entry in crossing.sensitivities
        ],
        "rows": [_row(row, is_known=is_known) for row in crossing.rows],
    }


def worker_document(worker: Worker) -> dict[str, Any]:
    """Model parallelism inside a worker."""
    return {
        "devices": worker.width,
        "local_batch_size": worker.batch,
        "strategy": worker.strategy,
        "speedup": worker.speedup,
        "speedup_interval": list(worker.interval),
        "speedup_links_half": worker.slow_links,
        "speedup_links_double": worker.fast_links,
    }


def _row(row: Row, *, is_known: bool) -> dict[str, Any]:
    return {
        "devices": row.devices,
        "speedup_over_dp": row.speedup if is_known else None,
        "speedup_interval": list(row.interval) if is_known else None,
        "likely": row.likely if is_known else None,
        "equal_batch_limit": row.equal_batch_limit,
        "needed_epoch_ratio": row.needed_epoch_ratio,
        "data_parallel": way_document(row.data),
        "hybrid": way_document(row.hybrid),
    }


def way_document(way: TrainingWay) -> dict[str, Any]:
    """One way to train."""
    return {
        "devices": way.devices,
        "workers": way.workers,
        "model_parallel_width": way.width,
        "local_batch_size": way.local_batch,
        "global_batch_size": way.global_batch,
        "step_time_s": way.step_s,
        "worker_alone_s": way.alone_s,
        "time_to_accuracy_s": way.time_s,
    }


# ---------------------------------------------------------------------------------------------------------------------
# A crossover for people: what happens at which width, then the rows, readable at 80 columns and without colour


TITLES = {
    "paper": "paper mode: fixed local batch, free exchange",
    "ours": "ours: any local batch, predicted exchange",
}


def head_lines(found: Crossover) -> list[str]:
    """The inputs of the comparison."""
    lines = [f"local batch of paper mode: {found.local_batch}; {found.software}"]
    if found.curve is not None:
        low, high = found.curve.range
        lines.append(f"curve {found.curve.name}: {found.curve.task}; batches {low:,} to {high:,}; {found.curve.source}")
        lines += found.curve.warnings
    return [*lines, *found.notes]


def summary_table(found: Crossover) -> Table:
    """One line a width: the worker, and from how many devices on it is ahead on each basis."""
    told = "from this number of devices on" if found.curve else f"where, on {max(found.counts)} devices,"
    table = frame_table(
        f"The hybrid is ahead {told}",
        "M: devices of a worker of the hybrid; SU^M: its speed by that of one device\n"
        "paper mode: fixed local batch, exchange of gradients at no cost\n"
        "ours: any local batch, predicted exchange"
        + ("; in brackets: 90 %" if found.curve else "; epochs × n: data parallelism needs n times the epochs"),
    )
    for title in ("M", "worker", "SU^M"):
        table.add_column(title, justify="left" if title == "worker" else "right", no_wrap=True)
    add_figures(table, "paper mode", "ours")
    for first in found.crossings:
        if first.basis != "paper":
            continue
        ours = next((one for one in found.crossings if one.width == first.width and one.basis == "ours"), first)
        worker = first.worker
        low, high = worker.interval
        table.add_row(
            str(first.width),
            worker.strategy,
            f"{worker.speedup:.2f} ({format_span(f'{low:.2f}', f'{high:.2f}', to='–')})",
            *(_from(one, is_known=found.curve is not None) for one in (first, ours)),
        )
    return table


def crossing_table(crossing: Crossing, *, is_known: bool) -> Table:
    """The best ways of both sides on each number of devices."""
    table = frame_table(f"M = {crossing.width}, {TITLES[crossing.basis]}", _legend(is_known=is_known))
    add_figures(
        table,
        "GPUs",
        "data parallel",
        "hybrid",
        *(("hybrid/DP", "90 %", "likely") if is_known else ("epochs needed", "largest same batch")),
    )
    for row in crossing.rows:
        table.add_row(str(row.devices), row.data.name, row.hybrid.name, *_cells(row, is_known=is_known))
    return table


def reason_lines(found: Crossover) -> list[str]:
    """Why, and what it would be otherwise."""
    lines = []
    for one in found.crossings:
        lines.append(f"M = {one.width}, {'paper mode' if one.basis == 'paper' else 'ours'}: {one.reason}")
        said = otherwise(one.devices, [(entry.change, entry.devices) for entry in one.sensitivities])
        lines += [f"  {said}"] if said else []
    return lines


def otherwise(devices: int | None, tried: Sequence[tuple[str, int | None]]) -> str:
    """What the crossover would be if something were otherwise; empty where nothing was tried.

    Args:
        devices: at which the hybrid is ahead; None: at none
        tried: changes, and the devices then
    """
    changed = [f"{change}: {_count(then)}" for change, then in tried if then != devices]
    if changed:
        return f"otherwise {_told(changed)}"
    return "the same with every change of workers, curve or links that was tried" if tried else ""


def _legend(*, is_known: bool) -> str:
    """The columns of the best ways of both sides."""
    if not is_known:
        return (
            "data parallel, hybrid: workers × local batch with the most samples a second\n"
            "epochs needed: ratio of epochs above which the hybrid is ahead\n"
            "largest same batch: largest global batch at which the hybrid's step is shorter; "
            "at smaller ones it may not be"
        )
    return (
        "data parallel, hybrid: workers × local batch, '32 of 2 × 64': workers of two\n"
        "hybrid/DP: how much sooner the hybrid reaches the target; 90 %: its interval\n"
        "likely: share of 400 draws of curve, workers, exchange in which it is ahead"
    )


def _from(crossing: Crossing, *, is_known: bool) -> str:
    if not is_known:
        return _needed(crossing)
    low, high = crossing.interval
    ends = format_span(_count(low), _count(high), to="–")
    return f"{_count(crossing.devices)} ({ends})"


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
    low, high = row.interval
    return f"{row.speedup:.3f}", format_span(f"{low:.2f}", f"{high:.2f}", to="–"), f"{row.likely:.0%}"


def _times(ratio: float | None) -> str:
    return "never" if ratio is None else f"× {ratio:.2f}"


def _count(devices: int | None) -> str:
    return "never" if devices is None else str(devices)


def _told(parts: Iterable[str]) -> str:
    return "; ".join(parts)


# ---------------------------------------------------------------------------------------------------------------------
# How a crossover looks for people


def verdict_line(found: Crossover) -> str:
    """From how many devices on which hybrid is ahead, over all widths and bases."""
    if found.curve is None:
        return f"{found.job}: from how many devices on a hybrid is ahead is not known without a curve (--curve NAME)."
    ours, paper = (
        _ahead([one for one in found.crossings if one.basis == basis and one.devices is not None])
        for basis in ("ours", "paper")
    )
    most = max(found.counts)
    said = f"workers of {ours}" if ours else f"more replicas stay ahead of model parallelism up to {most} devices"
    other = f"workers of {paper}" if paper else "more replicas stay ahead"
    return f"{found.job}: {said}; with exchange of gradients at no cost (paper mode) {other}."


def _ahead(crossings: Sequence[Crossing]) -> str:
    """Which worker is ahead first, and from how many devices on; "" where none is."""
    if not crossings:
        return ""
    first = min(crossings, key=lambda one: one.devices or 0)
    return f"{first.width} devices beat more replicas from {first.devices} devices on"


def print_crossover(out: Console, found: Crossover) -> None:
    """Print the verdict, the summary, the best ways on each number of devices, the reasons, what the figures mean."""
    out.print(f"[bold]{escape(verdict_line(found))}[/]\n")
    out.print(
        f"[bold]{escape(found.job)}[/] on {escape(found.cluster)} ({escape(found.device)}), "
        f"{precision_words(found.precision, found.precision_source)}"
    )
    for line in head_lines(found):
        out.print(f"[dim]{escape(line)}[/]")
    out.print("", summary_table(found), "")
    for crossing in found.crossings:
        if crossing.rows and (found.curve is not None or crossing.basis == "ours"):
            out.print(crossing_table(crossing, is_known=found.curve is not None), "")
    out.print("[bold]Why[/]")
    for line in reason_lines(found):
        text = line.lstrip()
        out.print(Padding(Joined(Text(text)), (0, 0, 0, 2 + len(line) - len(text))))
