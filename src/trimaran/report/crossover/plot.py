"""A crossover as a drawing: how much sooner the hybrid is ahead, over devices, one panel a basis, one line a width.

hybrid/DP
2 ┤                 ╱● M=2
1 ┤─────────●──●───╱────── as soon as data parallelism
½ ┤  ●──●──╱
  └────────────── devices
"""

import math
from collections.abc import Sequence

from trimaran.report.crossover.lines import TITLES
from trimaran.report.crossover.study import Crossing, Crossover
from trimaran.report.scaling.svg import Drawing

_COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8a5fbf", "#c77d0a", "#3aa6a6")
_PANEL = (72.0, 84.0, 330.0, 270.0)
_GAP = 70.0


def plot(found: Crossover) -> str:
    """The drawing as text of an SVG file."""
    left, top, width, height = _PANEL
    widths = list(dict.fromkeys(one.width for one in found.crossings))
    drawing = Drawing(width=2 * (left + width) + 30, height=top + height + 70 + 18 * ((len(widths) + 3) // 4))
    drawing.text(left, 24, f"{found.job} on {found.cluster}", size=15, bold=True)
    told = "no curve: samples a second alone" if found.curve is None else f"curve {found.curve.name}"
    drawing.text(left, 42, f"{found.device}, {found.precision}, {told}", colour="#555")
    for place, basis in enumerate(TITLES):
        crossings = [one for one in found.crossings if one.basis == basis]
        _panel(drawing, crossings, TITLES[basis], left=left + place * (width + _GAP), is_known=found.curve is not None)
    for number, each in enumerate(widths):
        x, y = left + (number % 4) * 110, top + height + 62 + 18 * (number // 4)
        drawing.line([(x, y - 4), (x + 18, y - 4)], colour=_COLOURS[number % len(_COLOURS)], width=2.0)
        drawing.text(x + 24, y, f"M = {each}")
    return drawing.render()


def _panel(drawing: Drawing, crossings: Sequence[Crossing], title: str, *, left: float, is_known: bool) -> None:
    _, top, width, height = _PANEL
    rows = [row for one in crossings for row in one.rows]
    drawing.text(left, top - 8, f"hybrid/DP, {title}", colour="#333")
    drawing.text(left + width, top + height + 36, "devices", anchor="end", colour="#333")
    if not rows:
        drawing.text(left + 8, top + 24, "nothing fits", colour="#555")
        return
    counts = sorted({row.devices for row in rows})
    ends = [end for row in rows for end in (row.interval if is_known else (row.speedup,))]
    low, high = min(-1, math.floor(math.log2(min(ends)))), max(1, math.ceil(math.log2(max(ends))))
    span = math.log2(counts[-1] / counts[0]) or 1.0

    def place(devices: int, ratio: float) -> tuple[float, float]:
        up = (math.log2(ratio) - low) / (high - low)
        return left + width * math.log2(devices / counts[0]) / span, top + height * (1 - up)

    for count in counts:
        x, _ = place(count, 1.0)
        drawing.line([(x, top), (x, top + height)], colour="#e4e4e4")
        drawing.text(x, top + height + 18, str(count), anchor="middle")
    for power in range(low, high + 1):
        y = place(counts[0], 2.0**power)[1]
        drawing.line([(left, y), (left + width, y)], colour="#555" if power == 0 else "#e4e4e4", dashed=power == 0)
        drawing.text(left - 8, y + 4, f"{2.0**power:g}", anchor="end")
    for number, crossing in enumerate(crossings):
        colour = _COLOURS[number % len(_COLOURS)]
        drawing.line([place(row.devices, row.speedup) for row in crossing.rows], colour=colour, width=2.0)
        for row in crossing.rows:
            drawing.dot(*place(row.devices, row.speedup), colour=colour)
            if is_known:
                drawing.line([place(row.devices, end) for end in row.interval], colour=colour)
