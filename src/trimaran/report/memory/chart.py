"""Live bytes over a step as text, readable at 80 columns and without colour.

    19.1 GiB ┤                  ··
             │              ····  ····
    11.6 GiB ┤──────────███████████████──────────
             │     ██████████████████████
             │██████████████████████████████████
         0 B ┼────────────────────────────────────
              forward       │ backward       │ update

A column stands for a share of the time of the step and shows the most that lives within it, so no peak is lost. Filled:
under the plan. Dots: what autograd alone would hold above that. The budget has a line of its own.
"""

from collections.abc import Sequence

from trimaran.report.memory.estimate import LiveCurve
from trimaran.units import format_bytes

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_NAMES = {"FP": "forward", "BP": "backward", "WU": "update"}
_LABEL = 10  # columns for a size such as "1023.9 GiB"


def memory_chart(curve: LiveCurve, *, budget_bytes: int, width: int = 80, height: int = 12) -> str:
    """The curve as lines of text, none longer than `width`.

    Args:
        curve: live bytes over the step
        budget_bytes: where the line goes [bytes]
        width: of the whole chart [columns]
        height: of the plot [lines]

    Example:
        >>> curve = LiveCurve(seconds=(1.0, 1.0), phases=("FP", "BP"), kept_bytes=(4, 8), plan_bytes=(4, 4))
        >>> print(memory_chart(curve, budget_bytes=6, width=20, height=4))
               8 B ┤    ····
               6 B ┤────····
                   │████████
                   │████████
               0 B ┼────────
                    forw│bac
    """
    columns = max(2, width - _LABEL - 2)
    kept = _columns(curve.kept_bytes, curve.seconds, columns)
    plan = _columns(curve.plan_bytes or curve.kept_bytes, curve.seconds, columns)
    top = max(*kept, *plan, budget_bytes, 1)
    # Rows are such that the budget ends one: what is within it never reaches above its line.
    line = max(1, int(budget_bytes / top * height))
    size = max(budget_bytes / line, top / height)
    rows = [_row(kept, plan, size=size, level=level, line=level == line) for level in range(height, 0, -1)]
    labels = {height: format_bytes(size * height), line: format_bytes(budget_bytes)}
    text = []
    for level, row in zip(range(height, 0, -1), rows, strict=True):
        text.append(f"{labels.get(level, ''):>{_LABEL}} {'┤' if level in labels else '│'}{row}")
    text.append(f"{format_bytes(0):>{_LABEL}} ┼{'─' * columns}")
    text.append(" " * (_LABEL + 2) + _phases(curve, columns))
    return "\n".join(row.rstrip() for row in text)


def chart_legend(curve: LiveCurve, *, split: bool = False) -> str:
    """What the signs of the chart mean.

    Args:
        curve: that is drawn
        split: whether it is of a step with modules in parts
    """
    if not curve.plan_bytes:
        return "█ live bytes   ─ budget"
    return f"█ under the plan   · with everything kept{', in parts' if split else ''}   ─ budget"


def _row(kept: Sequence[float], plan: Sequence[float], *, size: float, level: int, line: bool) -> str:
    """One line of the plot; it stands for what lies between `level - 1` and `level` times its size."""
    signs = []
    for before, now in zip(kept, plan, strict=True):
        share = now / size - (level - 1)
        filled = _EIGHTHS[min(8, max(0, round(share * 8)))]
        above = before / size - (level - 1) > 0.5
        signs.append(filled if filled != " " else "·" if above else "─" if line else " ")
    return "".join(signs)


def _columns(values: Sequence[int], seconds: Sequence[float], columns: int) -> list[float]:
    """The largest value within each column of time; moments without a duration count where they happen."""
    total = sum(seconds) or float(len(seconds)) or 1.0
    even = not sum(seconds)
    largest = [0.0] * columns
    clock = 0.0
    for value, duration in zip(values, seconds, strict=True):
        first = min(columns - 1, int(clock / total * columns + 1e-9))
        clock += 1.0 if even else duration
        last = min(columns - 1, max(first, int(clock / total * columns - 1e-9)))
        for column in range(first, last + 1):
            largest[column] = max(largest[column], value)
    return largest


def _phases(curve: LiveCurve, columns: int) -> str:
    """Names of the phases below the plot, cut off where there is no room."""
    total = sum(curve.seconds)
    text, clock, start = "", 0.0, 0
    ends: list[tuple[str, int]] = []
    for place, (phase, duration) in enumerate(zip(curve.phases, curve.seconds, strict=True)):
        clock += duration
        if place + 1 == len(curve.phases) or curve.phases[place + 1] != phase:
            ends.append((phase, round(clock / total * columns) if total else columns))
    for number, (phase, end) in enumerate(ends):
        mark = "│" if number else ""
        room = end - start
        text += f"{mark}{_NAMES.get(phase, phase)}"[:room].ljust(room)
        start = max(start, end)
    return text
