"""A scaling study for people: one table a batch and method, readable at 80 columns and without colour."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from trimaran.report.scaling.study import Advice, ScalingRow, ScalingStudy
from trimaran.units import format_bytes

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


def study_tables(study: ScalingStudy) -> list[Table]:
    """The rows, a table for each batch and method. Times are in milliseconds of a step."""
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
    first = rows[0].step
    batch = first.batch_per_device * (first.devices if study.mode == "strong" else 1)
    table = Table(
        title=f"{first.sync}, batch {batch} {'in all' if study.mode == 'strong' else 'a device'}",
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
        table.add_row(*_cells(row))
    return table


def _cells(row: ScalingRow) -> list[str]:
    step = row.step
    return [
        str(step.devices),
        f"{row.samples_per_s:,.0f}" if row.samples_per_s >= 10 else f"{row.samples_per_s:.2f}",
        f"{100 * (row.high - row.low) / 2 / row.samples_per_s:.0f}%",
        f"{row.speedup:.2f}",
        f"{100 * row.efficiency:.0f}%",
        _ms(step.fp_bp_s),
        _ms(step.communication_s - step.exposed_communication_s),
        _ms(step.exposed_communication_s),
        _ms(step.update_s),
        _ms(step.overhead_s + step.feeding_s),
        _SHORT[row.limiter],
        f"{row.peak_bytes / 2**30:.1f}G{'' if row.fits else '!'}",
    ]


def layer_lines(study: ScalingStudy) -> list[str]:
    """Which layers the largest groups wait for."""
    lines = []
    for row in worst_waits(study):
        layers = ", ".join(
            f"{layer.module} ({format_bytes(layer.nbytes)}, {_ms(layer.exposed_s)} ms)"
            for layer in row.step.exposed[:_LAYERS]
        )
        lines.append(f"{_place(row)}: {layers}")
    return lines


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
    return [
        "ms of a step: FP+BP beside the exchange; communication hidden behind it and exposed; the optimizer; other: "
        "calls, copies into buffers, waits for the slowest. ±: half of the 90 % interval.",
        "memory: of the rank that needs the most, in GiB; !: more than a device has.",
        f"Times are {study.source}; {study.software}.",
        *study.notes,
    ]


def _place(row: ScalingRow) -> str:
    return f"{row.step.sync}, {row.step.devices} x {row.step.batch_per_device}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}" if seconds < 9.9995 else f"{1e3 * seconds:,.0f}"
