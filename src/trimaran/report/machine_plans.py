"""The text of a plan for a machine that is not here, from its document."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from trimaran.report.accuracy import outlook_lines
from trimaran.report.framing import frame_table
from trimaran.units import format_bytes, format_seconds

ROWS = 12
"""Strategies that are listed."""


def machine_plan_lines(document: Mapping[str, Any]) -> list[str | Table]:
    """A plan as sentences and a table of strategies, readable at 80 columns.

    Args:
        document: as `trimaran plan --cluster … --json` prints it
    """
    chosen = document["chosen"]
    lines: list[str | Table] = [
        f"{document['job']} on {document['devices']} of {document['machine']} ({document['device']}), "
        f"global batch {document['global_batch_size']}, {document['precision']}, {document['software']}",
        "",
        _table(document),
        "",
        f"Chosen: {chosen['strategy']}, {format_seconds(chosen['step_time_s'])} a step "
        f"({_interval(chosen['interval_s'])}), {_gain(document)}.",
    ]
    if chosen.get("device_order"):
        lines.append(f"Devices of ranks 0, 1, …: {_listed(chosen['device_order'])}.")
    placement = chosen.get("placement", {})
    if len(set(placement.values())) > 1:
        lines += ["Placement:", *_placement(placement)]
    if "time_to_accuracy_s" in document:
        lines += ["", *outlook_lines(document), ""]
    counts = document["rejected_counts"]
    if counts:
        lines.append("Not among them: " + ", ".join(f"{cause} ({number})" for cause, number in counts.items()) + ".")
    return [*lines, *(f"Note: {note}." for note in document["notes"])]


def _gain(document: Mapping[str, Any]) -> str:
    chosen = document["chosen"]
    if "speedup" not in chosen:
        return f"{chosen['tokens_per_s']:,.0f} tokens/s, {chosen['mfu']:.0%} of the devices' peak"
    lone = "" if document["one_device_fits"] else ", on which the whole would not fit"
    return f"{chosen['speedup']:.2f} times one device{lone}"


def _table(document: Mapping[str, Any]) -> Table:
    rows = document.get("at_batch", document)["candidates"][:ROWS]
    gain = "speedup" if "speedup" in rows[0] else "mfu"
    table = frame_table()
    table.add_column("strategy")
    for title in ("step", gain, "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    if any(row["limiter"] for row in rows):
        table.add_column("limited by")
    for row in rows:
        memory = format_bytes(max(row["peak_bytes"], default=0))
        cells = (row["strategy"], format_seconds(row["step_time_s"]), f"{row[gain]:.2f}", memory, row["limiter"])
        table.add_row(*map(Text, cells[: len(table.columns)]))
    return table


def _placement(placement: Mapping[str, int]) -> Iterator[str]:
    rows = sorted(set(placement.values()))
    for row in rows:
        names = [name for name, where in placement.items() if where == row]
        yield f"  {row}: {_listed(names)}"


def _interval(ends: Sequence[float]) -> str:
    return f"90 %: {format_seconds(ends[0])} to {format_seconds(ends[1])}"


def _listed(values: Sequence[object], most: int = 16) -> str:
    shown = ", ".join(str(value) for value in values[:most])
    return f"{shown}, … ({len(values)} in all)" if len(values) > most else shown
