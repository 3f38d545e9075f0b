"""A scaling study for people: one table a batch and method, readable at 80 columns and without colour.

The names of the columns fill 80 columns, so that no figure may be longer than its column's name: times have at most
five characters, in a unit that the whole table shares.
"""

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from trimaran.costs.scaled import ScaledStep
from trimaran.report.scaling.study import Advice, ScalingRow, ScalingStudy
from trimaran.units import format_bytes, format_seconds

_SHORT = {
    "compute": "compute",
    "launches": "launch",
    "communication": "comm",
    "update": "update",
    "feeding": "feed",
    "memory": "memory",
}
_COLUMNS = ("GPUs", "samples/s", "±", "speedup", "eff.", "FP+BP", "hidden", "exposed", "update", "other")
_LAYERS = 4
_UNITS = {"ms": 1e-3, "s": 1.0, "h": 3600.0}
# Of a unit, so that it takes five characters.
_MOST = 9999.5


def study_tables(study: ScalingStudy) -> list[Table]:
    """The rows, a table for each batch and method.

    Times are in milliseconds of a step; where these would be longer than their columns, in seconds or hours, and the
    title says so.
    """
    return [_table(study, rows) for rows in groups(study.rows, strong=study.mode == "strong")]


def groups(rows: Iterable[ScalingRow], *, strong: bool) -> list[list[ScalingRow]]:
    """Rows of one batch and one method together, in order.

    Args:
        rows: of a study
        strong: the batch is that of all devices
    """
    found: dict[tuple[int, str], list[ScalingRow]] = {}
    for row in rows:
        batch = row.step.batch_per_device * (row.step.devices if strong else 1)
        found.setdefault((batch, row.step.sync), []).append(row)
    return list(found.values())


def _table(study: ScalingStudy, rows: Sequence[ScalingRow]) -> Table:
    first, unit = rows[0].step, _unit(rows)
    batch = first.batch_per_device * (first.devices if study.mode == "strong" else 1)
    table = Table(
        title=f"{first.sync}, batch {batch} {'in all' if study.mode == 'strong' else 'a device'}"
        + ("" if unit == "ms" else f", times in {unit}"),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        padding=(0, 0, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, unit))
    return table


def _cells(row: ScalingRow, unit: str) -> list[str]:
    step, peak = row.step, row.peak_bytes / 2**30
    return [
        str(step.devices),
        _rate(row.samples_per_s),
        f"{100 * (row.high - row.low) / 2 / row.samples_per_s:.0f}%",
        f"{row.speedup:.2f}",
        f"{100 * row.efficiency:.0f}%",
        *(_time(seconds, unit) for seconds in _times(step)),
        _SHORT[row.limiter],
        f"{peak:.{1 if peak < 99.95 else 0}f}G{'' if row.fits else '!'}",
    ]


def _times(step: ScaledStep) -> tuple[float, ...]:
    """The parts of a step that are shown [s]."""
    hidden_s = step.communication_s - step.exposed_communication_s
    return step.fp_bp_s, hidden_s, step.exposed_communication_s, step.update_s, step.overhead_s + step.feeding_s


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


def _wait(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1.0 else format_seconds(seconds)


def worst_waits(study: ScalingStudy) -> list[ScalingRow]:
    """For each method the set-up that waits for layers the longest, as a share of its step."""
    worst: dict[str, ScalingRow] = {}
    for row in study.rows:
        before = worst.get(row.step.sync)
        if row.step.exposed and (before is None or _waited(row) > _waited(before)):
            worst[row.step.sync] = row
    return list(worst.values())


def _waited(row: ScalingRow) -> float:
    return row.step.exposed_communication_s / row.step.step.seconds


def advice_lines(advice: Iterable[Advice], *, most: int = 6) -> list[str]:
    """Changes that would help, each where it helps the most, the largest gain first."""
    best: dict[tuple[str, str], Advice] = {}
    for item in advice:
        best.setdefault((item.row.step.sync, item.reason), item)
    return [
        f"+{100 * item.gain:.0f} % ({_place(item.row)}) {item.change}: {item.reason}"
        for item in list(best.values())[:most]
    ]


def legend_lines(study: ScalingStudy) -> list[str]:
    """What the columns mean."""
    in_ms = {_unit(rows) for rows in groups(study.rows, strong=study.mode == "strong")} == {"ms"}
    return [
        f"{'ms' if in_ms else 'Parts'} of a step: FP+BP beside the exchange; communication hidden behind it and "
        "exposed; the optimizer; other: "
        "calls, copies into buffers, waits for the slowest. ±: half of the 90 % interval.",
        "memory: of the rank that needs the most, in GiB; !: more than a device has.",
        f"Times are {study.source}; {study.software}.",
        *study.notes,
    ]


def _place(row: ScalingRow) -> str:
    return f"{row.step.sync}, {row.step.devices} x {row.step.batch_per_device}"
