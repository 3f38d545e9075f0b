"""A crossover for people: what happens at which width, then the rows, readable at 80 columns and without colour."""

from collections.abc import Iterable

from rich.table import Table

from trimaran.report.crossover.study import Crossing, Crossover, Row
from trimaran.report.framing import frame_table

TITLES = {"paper": "paper mode: fixed local batch, SE = 1", "ours": "local batch free, predicted exchange"}


def head_lines(found: Crossover) -> list[str]:
    """What is compared, and by which curve."""
    lines = [f"local batch of paper mode: {found.local_batch}; {found.software}"]
    if found.curve is not None:
        low, high = found.curve.range
        lines.append(f"curve {found.curve.name}: {found.curve.task}; batches {low:,} to {high:,}; {found.curve.source}")
        lines += found.curve.warnings
    return [*lines, *found.notes]


def summary_table(found: Crossover) -> Table:
    """One line a width: the worker, and from how many devices on it is ahead on each basis."""
    told = "from so many devices on" if found.curve else f"where, on {max(found.counts)} devices,"
    table = frame_table(f"The hybrid is ahead {told}")
    for title in ("M", "worker", "SU^M"):
        table.add_column(title, justify="left" if title == "worker" else "right", no_wrap=True)
    for title in ("paper mode", "ours"):
        table.add_column(title, justify="right", no_wrap=True)
    for first in found.crossings:
        if first.basis != "paper":
            continue
        ours = next((one for one in found.crossings if one.width == first.width and one.basis == "ours"), first)
        worker = first.worker
        low, high = worker.interval
        table.add_row(
            str(first.width),
            worker.strategy,
            f"{worker.speedup:.2f} ({low:.2f}–{high:.2f})",
            *(_from(one, is_known=found.curve is not None) for one in (first, ours)),
        )
    return table


def crossing_table(crossing: Crossing, *, is_known: bool) -> Table:
    """The best ways of both sides on each number of devices."""
    table = frame_table(f"M = {crossing.width}, {TITLES[crossing.basis]}")
    for title in ("GPUs", "data parallel", "hybrid"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("hybrid/DP", "90 %", "likely") if is_known else ("epochs needed", "largest same batch"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in crossing.rows:
        table.add_row(str(row.devices), row.data.name, row.hybrid.name, *_cells(row, is_known=is_known))
    return table


def reason_lines(found: Crossover) -> list[str]:
    """Why, and what it would be otherwise."""
    lines = []
    for one in found.crossings:
        lines.append(f"M = {one.width}, {'paper mode' if one.basis == 'paper' else 'ours'}: {one.reason}")
        changed = [entry for entry in one.sensitivities if entry.devices != one.devices]
        if changed:
            lines.append("  otherwise " + _told(f"{entry.change}: {_count(entry.devices)}" for entry in changed))
        elif one.sensitivities:
            lines.append("  the same with every change of workers, curve or links that was tried")
    return lines


def legend_lines(found: Crossover) -> list[str]:
    """What the columns mean."""
    if found.curve is None:
        return [
            "Ways are workers × local batch, here those with the most samples a second.",
            "epochs needed: the ratio of epochs above which the hybrid is ahead; largest same batch: the largest "
            "global batch at which its step is the shorter one; at smaller ones it may not be.",
        ]
    return [
        "Ways are workers × local batch, '128 of 2 × 64' workers of two devices.",
        "hybrid/DP: how much sooner the hybrid reaches the target; likely: share of 400 draws of curve, workers, "
        "exchange and small batches in which it is ahead.",
    ]


def _from(crossing: Crossing, *, is_known: bool) -> str:
    if not is_known:
        return _needed(crossing)
    low, high = crossing.interval
    ends = _count(low) if low == high else f"{_count(low)}–{_count(high)}"
    return f"{_count(crossing.devices)} ({ends})"


def _needed(crossing: Crossing) -> str:
    """What would have to hold, where there is no curve."""
    if not crossing.rows:
        return "never"
    last = crossing.rows[-1]
    if crossing.basis == "paper":
        return f"epochs × {last.needed_epoch_ratio:.2f}"
    return "never" if last.equal_batch_limit is None else f"at batch {last.equal_batch_limit:,}"


def _cells(row: Row, *, is_known: bool) -> tuple[str, ...]:
    if not is_known:
        limit = row.equal_batch_limit
        return f"× {row.needed_epoch_ratio:.2f}", "none" if limit is None else f"{limit:,}"
    low, high = row.interval
    return f"{row.speedup:.3f}", f"{low:.2f}–{high:.2f}", f"{row.likely:.0%}"


def _count(devices: int | None) -> str:
    return "never" if devices is None else str(devices)


def _told(parts: Iterable[str]) -> str:
    return "; ".join(parts)
