"""How a placement looks: for programs as one document, for people as tables of 80 columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from trimaran.base.units import format_bytes, format_count, format_rate, format_seconds
from trimaran.report.tables import add_figures, frame_table

_MOST_STRETCHES = 24
"""Lines of a table beyond which the smallest are put together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRun:
    """A forward ("F") or backward ("B") in the schedule: its node, its device and when [s]."""

    node: str
    phase: str
    device: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTransfer:
    """A tensor ("F") or gradient ("B") on its way: of which node, from where to where, how large and when."""

    node: str
    phase: str
    source: int
    target: int
    nbytes: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStretch:
    """Some operations that follow each other.

    Attributes:
        first: name of the first
        last: name of the last
        what: what kinds of operations they are
        seconds: forward and backward time on each device [s]
        crossing_bytes: of their outputs and gradients, what crosses [bytes]
    """

    first: str
    last: str
    what: str
    seconds: tuple[float, ...]
    crossing_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacingReport:
    """A placement, as far as it is shown.

    Attributes:
        name: of the network
        devices: how many there are
        bytes_per_s: of a wire, each way [bytes/s]
        makespan_s: of a step [s]
        serial_s: of a step on one device [s]
        bound_s: no placement is shorter [s]
        heft_s: of the list schedule by earliest finish time; None: it does not fit [s]
        runs: forwards and backwards by start
        transfers: by start
        busy_s: time for which each device computes [s]
        peak_bytes: most that each holds [bytes]
        stretches: the network from front to back
        method: how the answer was found
        notes: why it is not faster
    """

    name: str
    devices: int
    bytes_per_s: float
    makespan_s: float
    serial_s: float
    bound_s: float
    heft_s: float | None
    runs: Sequence[PlacedRun]
    transfers: Sequence[PlacedTransfer]
    busy_s: Sequence[float]
    peak_bytes: Sequence[float]
    stretches: Sequence[PlacedStretch]
    method: str
    notes: Sequence[str]

    @property
    def speedup(self) -> float:
        """Over one device."""
        return self.serial_s / self.makespan_s if self.makespan_s > 0 else 1.0

    @property
    def gap(self) -> float:
        """How much longer than the bound the step is, as a share of the bound."""
        return self.makespan_s / self.bound_s - 1.0 if self.bound_s > 0 else 0.0


def placing_document(report: PlacingReport) -> dict[str, Any]:
    """The answer for a program; times in seconds.

    Args:
        report: of a placement
    """
    step = report.makespan_s or 1.0
    return {
        "graph": report.name,
        "devices": report.devices,
        "speedup": report.speedup,
        "makespan_s": report.makespan_s,
        "serial_s": report.serial_s,
        "bound_s": report.bound_s,
        "gap": report.gap,
        "heft_s": report.heft_s,
        "method": report.method,
        "busy": [seconds / step for seconds in report.busy_s],
        "peak_bytes": list(report.peak_bytes),
        "notes": list(report.notes),
        "schedule": [
            {"node": run.node, "phase": run.phase, "device": run.device, "start_s": run.start_s, "end_s": run.end_s}
            for run in report.runs
        ],
        "transfers": [
            {
                "node": move.node,
                "phase": move.phase,
                "from": move.source,
                "to": move.target,
                "start_s": move.start_s,
                "end_s": move.end_s,
                "nbytes": move.nbytes,
            }
            for move in report.transfers
        ],
    }


def placing_lines(report: PlacingReport) -> list[str | Table]:
    """The answer for a person.

    Args:
        report: of a placement
    """
    heft = "" if report.heft_s is None else f" (a list schedule by earliest finish: {format_seconds(report.heft_s)})"
    wires = f", {format_rate(report.bytes_per_s)} each way" if report.devices > 1 else ""
    lines: list[str | Table] = [
        f"{report.name} on {format_count(report.devices, 'device')}{wires}: "
        f"{format_seconds(report.makespan_s)} a step{heft}",
        f"{report.speedup:.3f} times as fast as one device ({format_seconds(report.serial_s)}); "
        + (
            "proved to be the best"
            if report.gap < 1e-6
            else f"at most {report.gap:.1%} longer than the best (none is below {format_seconds(report.bound_s)})"
        ),
        "",
        _device_table(report),
        "",
        _stretch_table(report),
        "",
    ]
    return [*lines, *(f"{note[0].upper()}{note[1:]}." for note in report.notes)]


def _device_table(report: PlacingReport) -> Table:
    table = frame_table("Devices")
    add_figures(table, "device", "operations", "busy", "sends", "memory", no_wrap=False)
    step = report.makespan_s or 1.0
    for device in range(report.devices):
        count = sum(run.phase == "F" and run.device == device for run in report.runs)
        sent = sum(move.nbytes for move in report.transfers if move.source == device)
        table.add_row(
            str(device),
            str(count),
            f"{report.busy_s[device] / step:.1%}",
            format_bytes(sent),
            format_bytes(report.peak_bytes[device]),
        )
    return table


def _stretch_table(report: PlacingReport) -> Table:
    table = frame_table("From front to back: forward and backward time on each device, and what crosses")
    table.add_column("operations", overflow="ellipsis", no_wrap=True, max_width=24)
    table.add_column("kinds", overflow="ellipsis", no_wrap=True, max_width=20)
    shown = min(report.devices, 4)
    for device in range(shown):
        add_figures(table, f"{device}", no_wrap=False)
    if report.devices > shown:
        add_figures(table, "others", no_wrap=False)
    add_figures(table, "crosses", no_wrap=False)
    for stretch in _fewer(report.stretches):
        name = stretch.first if stretch.first == stretch.last else f"{stretch.first} … {stretch.last}"
        cells = [format_seconds(value) if value > 0 else "–" for value in stretch.seconds[:shown]]
        if report.devices > shown:
            rest = sum(stretch.seconds[shown:])
            cells.append(format_seconds(rest) if rest > 0 else "–")
        table.add_row(
            name, stretch.what, *cells, format_bytes(stretch.crossing_bytes) if stretch.crossing_bytes else "–"
        )
    return table


def _fewer(stretches: Sequence[PlacedStretch]) -> list[PlacedStretch]:
    """Neighbours put together until the table is short: first those of one device, then the shortest."""
    found: list[PlacedStretch] = []
    for stretch in stretches:
        if found and _only_device(found[-1]) is not None and _only_device(found[-1]) == _only_device(stretch):
            found[-1] = _together(found[-1], stretch)
        else:
            found.append(stretch)
    while len(found) > _MOST_STRETCHES:
        at = min(range(len(found) - 1), key=lambda index: sum(found[index].seconds) + sum(found[index + 1].seconds))
        found[at : at + 2] = [_together(found[at], found[at + 1])]
    return found


def _only_device(stretch: PlacedStretch) -> int | None:
    """The only device that runs a stretch from which nothing crosses."""
    devices = [device for device, seconds in enumerate(stretch.seconds) if seconds > 0]
    return devices[0] if len(devices) == 1 and stretch.crossing_bytes == 0 else None


def _together(one: PlacedStretch, other: PlacedStretch) -> PlacedStretch:
    kinds = dict.fromkeys([*one.what.split(", "), *other.what.split(", ")])
    return PlacedStretch(
        first=one.first,
        last=other.last,
        what=", ".join(kind for kind in kinds if kind),
        seconds=tuple(a + b for a, b in zip(one.seconds, other.seconds, strict=True)),
        crossing_bytes=one.crossing_bytes + other.crossing_bytes,
    )
