"""How a placement looks: for programs as one document, for people as tables of 80 columns."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from trimaran.base.units import format_bytes, format_count, format_rate, format_seconds
from trimaran.features.placement import Placed, Stretch, stretches
from trimaran.placement.problem import NodeTransfer
from trimaran.program.json_files import to_plain
from trimaran.report.tables import add_figures, frame_table

_MOST_STRETCHES = 24
"""Lines of a table beyond which the smallest are put together."""


def placement_document(placed: Placed) -> dict[str, Any]:
    """The answer for a program; times in seconds.

    Args:
        placed: a graph with its answer
    """
    answer = placed.placement
    step_s = answer.makespan_s or 1.0
    return {
        "graph": placed.graph.name,
        "devices": placed.problem.devices,
        "speedup": answer.speedup,
        "makespan_s": answer.makespan_s,
        "serial_s": answer.serial_s,
        "bound_s": answer.bound_s,
        "gap": answer.gap,
        "heft_s": answer.heft_s,
        "method": answer.method,
        "busy": [seconds / step_s for seconds in _busy_s(placed)],
        "sent_bytes": _sent_bytes(placed),
        "peak_bytes": list(answer.peak_bytes),
        "notes": list(answer.notes),
        "stretches": [to_plain(stretch) for stretch in _fewer(stretches(placed))],
        "schedule": to_plain(answer.schedule),
        "transfers": [
            {
                "node": move.node,
                "phase": move.phase,
                "from": move.source,
                "to": move.target,
                "start_s": move.start_s,
                "end_s": move.end_s,
                "nbytes": _nbytes(placed, move),
            }
            for move in answer.transfers
        ],
    }


def placement_lines(placed: Placed) -> list[str | Table]:
    """The answer for a person.

    Args:
        placed: a graph with its answer
    """
    answer, devices = placed.placement, placed.problem.devices
    heft = "" if answer.heft_s is None else f" (a list schedule by earliest finish: {format_seconds(answer.heft_s)})"
    rate = next((format_rate(wire.bytes_per_s) for wire in placed.problem.wires.values()), "")
    links = f", {rate} each way" if rate else ""
    lines: list[str | Table] = [
        f"{placed.graph.name} on {format_count(devices, 'device')}{links}: "
        f"{format_seconds(answer.makespan_s)} a step{heft}",
        f"{answer.speedup:.3f} times as fast as one device ({format_seconds(answer.serial_s)}); "
        + (
            "proved to be the best"
            if answer.gap < 1e-6
            else f"at most {100 * answer.gap:.1f} % longer than the best; none is below "
            f"{format_seconds(answer.bound_s)}"
        ),
        "",
        _device_table(placed),
        "",
        _stretch_table(placed),
        "",
    ]
    return [*lines, *(f"{note[0].upper()}{note[1:]}." for note in answer.notes)]


def _busy_s(placed: Placed) -> list[float]:
    """Time for which each device computes [s]."""
    busy_s = [0.0] * placed.problem.devices
    for run in placed.placement.schedule:
        busy_s[run.device] += run.end_s - run.start_s
    return busy_s


def _sent_bytes(placed: Placed) -> list[float]:
    """What each device sends in a step [bytes]."""
    sent = [0.0] * placed.problem.devices
    for move in placed.placement.transfers:
        sent[move.source] += _nbytes(placed, move)
    return sent


def _nbytes(placed: Placed, move: NodeTransfer) -> float:
    """Size of a tensor or gradient that crosses [bytes]."""
    node = next(node for node in placed.problem.nodes if node.name == move.node)
    return node.nbytes if move.phase == "F" else node.backward_nbytes


def _device_table(placed: Placed) -> Table:
    answer, sent = placed.placement, _sent_bytes(placed)
    table = frame_table("Devices", "busy: share of the step; sends: bytes a step; memory: at the peak")
    add_figures(table, "device", "operations", "busy", "sends", "memory", no_wrap=False)
    for device, busy_s in enumerate(_busy_s(placed)):
        table.add_row(
            str(device),
            str(sum(where == device for where in answer.device_of.values())),
            f"{100 * busy_s / (answer.makespan_s or 1.0):.1f} %",
            format_bytes(sent[device]),
            format_bytes(answer.peak_bytes[device]),
        )
    return table


def _stretch_table(placed: Placed) -> Table:
    devices = placed.problem.devices
    table = frame_table(
        "From front to back",
        "0, 1, …: forward and backward time on each device; crosses: bytes between devices; –: none",
    )
    table.add_column("operations", max_width=24)
    table.add_column("kinds", max_width=20)
    shown = min(devices, 4)
    for device in range(shown):
        add_figures(table, f"{device}", no_wrap=False)
    if devices > shown:
        add_figures(table, "others", no_wrap=False)
    add_figures(table, "crosses", no_wrap=False)
    for stretch in _fewer(stretches(placed)):
        name = stretch.first if stretch.first == stretch.last else f"{stretch.first} … {stretch.last}"
        cells = [format_seconds(value) if value > 0 else "–" for value in stretch.seconds[:shown]]
        if devices > shown:
            rest = sum(stretch.seconds[shown:])
            cells.append(format_seconds(rest) if rest > 0 else "–")
        table.add_row(
            name,
            ", ".join(stretch.kinds),
            *cells,
            format_bytes(stretch.crossing_bytes) if stretch.crossing_bytes else "–",
        )
    return table


def _fewer(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Neighbours put together until the table is short: first those of one device, then the shortest."""
    found: list[Stretch] = []
    for stretch in stretches:
        if found and _only_device(found[-1]) is not None and _only_device(found[-1]) == _only_device(stretch):
            found[-1] = _together(found[-1], stretch)
        else:
            found.append(stretch)
    while len(found) > _MOST_STRETCHES:
        at = min(range(len(found) - 1), key=lambda index: sum(found[index].seconds) + sum(found[index + 1].seconds))
        found[at : at + 2] = [_together(found[at], found[at + 1])]
    return found


def _only_device(stretch: Stretch) -> int | None:
    """The only device that runs a stretch from which nothing crosses."""
    devices = [device for device, seconds in enumerate(stretch.seconds) if seconds > 0]
    return devices[0] if len(devices) == 1 and stretch.crossing_bytes == 0 else None


def _together(one: Stretch, other: Stretch) -> Stretch:
    return Stretch(
        first=one.first,
        last=other.last,
        kinds=tuple(dict.fromkeys((*one.kinds, *other.kinds))),
        seconds=tuple(a + b for a, b in zip(one.seconds, other.seconds, strict=True)),
        crossing_bytes=one.crossing_bytes + other.crossing_bytes,
    )
