"""The result as text: one line a pair, 110 columns."""

from collections.abc import Sequence
from typing import Any

_COLUMNS = (
    ("case", "<17"),
    ("arm", "<20"),
    ("step", ">9"),
    ("slower", ">7"),
    ("limit", ">6"),
    ("peak", ">7"),
    ("budget", ">7"),
    ("held", ">4"),
    ("out", ">6"),
    ("in", ">6"),
    ("stall", ">7"),
    ("equal", ">5"),
)

HEADER = " ".join(f"{name:{width}}" for name, width in _COLUMNS)

LEGEND = """
slower: step / the oracle's - 1. limit: step / the least that physics allows in this budget.
peak, budget: of the allocator [GiB, MiB]; held: whether peak <= budget. out, in: copied to the host and back.
stall: the host waits for copies, a step. equal: gradients and running statistics equal the oracle's bit for bit;
stats: the gradients do."""


def line(row: dict[str, Any]) -> str:
    """One line of the table.

    Args:
        row: as it is kept
    """
    if row["status"] != "ok":
        reason = str(row.get("error", "")).strip().splitlines()
        return f"{row['case']:<17} {row['arm']:<20} {row['status']}: {reason[0][:80] if reason else ''}"
    cells = (
        row["case"],
        row["arm"],
        f"{row['step_s'] * 1e3:.1f}ms",
        f"{row['slowdown']:+.1%}",
        _number(row.get("ratio_to_limit"), 3),
        _size(row.get("peak_bytes")),
        _size(row.get("budget_bytes")),
        "yes" if row["held"] else "NO",
        _size(row.get("to_host_bytes")),
        _size(row.get("to_device_bytes")),
        "-" if row.get("stall_s") is None else f"{row['stall_s'] * 1e3:.1f}ms",
        _equal(row),
    )
    return " ".join(f"{cell:{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """For each case, the limit and the fastest arm that holds its budget."""
    texts = []
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case and row["status"] == "ok" and row["arm"] != "oracle"]
        held = sorted((row for row in own if row["held"]), key=lambda row: row["step_s"])
        limit = next((row["limit_slowdown"] for row in own if row.get("limit_slowdown") is not None), None)
        if held:
            said = "" if limit is None else f", limit {limit:+.1%}"
            order = ", ".join(f"{row['arm']} {row['slowdown']:+.1%}" for row in held[:3])
            texts.append(f"{case}: {order}{said}")
    return "\n".join(texts)


def _equal(row: dict[str, Any]) -> str:
    found = row.get("likeness")
    if found is None:
        return "-"
    if found["equal"]:
        return "yes"
    return "NO" if found.get("gradients", 1) else "stats"


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return "-"
    return f"{nbytes / 2**30:.2f}G" if nbytes >= 2**28 else f"{nbytes / 2**20:.1f}M"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
