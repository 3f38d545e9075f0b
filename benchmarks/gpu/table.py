"""The result as text: one line a case, 80 columns."""

from typing import Any

_COLUMNS = (
    ("job", "<13"),
    ("batch", ">5"),
    ("mode", "<8"),
    ("step", ">8"),
    ("error", ">5"),
    ("FP", ">5"),
    ("BP", ">5"),
    ("WU", ">5"),
    ("loop", ">5"),
    ("rec", ">4"),
    ("mem", ">5"),
)

HEADER = " ".join(f"{name:{width}}" for name, width in _COLUMNS)

LEGEND = """
error, FP, BP, WU, mem (peak memory): predicted / measured - 1.
loop: the runtime's step over that of a loop written by hand, - 1.
rec: what recording adds to a step."""


def row(case: dict[str, Any]) -> str:
    """One line of the table.

    Args:
        case: from `cases.run_case`, with its job
    """
    parts, memory = case["parts"], case["peak_bytes"]
    measured = memory["measured"]
    cells = (
        case["job"],
        case["batch"],
        case["execution"],
        _milliseconds(parts["step"]["measured_s"]),
        *(_percent(parts[name]["error"]) for name in ("step", "forward", "backward", "update")),
        _percent(case["overhead"]["share"]),
        _percent(case["recording"]["share"]),
        _percent(memory["predicted"] / measured - 1 if measured else None),
    )
    return " ".join(f"{cell:{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:+.0%}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}ms"
