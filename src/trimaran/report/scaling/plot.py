"""A scaling study as a drawing: speedup over devices, and the shares of a step, as SVG that any browser shows.

speedup                              shares of a step
8 ┤           ╱ linear               ┌──┐┌──┐┌──┐  other
  │        ╱──●                      │  ││▒▒││▒▒│  update
2 ┤    ╱─●                           │██││██││██│  exposed
  └────────────── devices            └──┘└──┘└──┘  FP+BP
"""

from collections.abc import Sequence
from math import log2

from trimaran.report.scaling.study import ScalingRow, ScalingStudy
from trimaran.report.scaling.svg import Drawing
from trimaran.report.scaling.table import groups

_COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8a5fbf", "#c77d0a", "#3aa6a6", "#7a7a7a", "#a8324a")
_PARTS = (("FP+BP", "#c9d8e6"), ("exposed communication", "#d1495b"), ("update", "#e0a72e"), ("other", "#8c8c8c"))
_PANEL = (72.0, 76.0, 330.0, 270.0)
_GAP = 44.0
_BAR = 15.0


def plot(study: ScalingStudy) -> str:
    """The drawing as text of an SVG file."""
    found = groups(study.rows, strong=study.mode == "strong")
    bars = sum(len(rows) for rows in found)
    left, top, width, height = _PANEL
    second = left + width + _GAP + 20
    bars_width = max(270.0, bars * _BAR * 1.35 + len(found) * 14)
    drawing = Drawing(width=second + bars_width + 30, height=top + height + 86 + 18 * ((len(found) + 1) // 2))
    drawing.text(left, 24, f"{study.job} on {study.cluster}", size=15, bold=True)
    drawing.text(left, 42, f"{study.device}, {study.precision}, {study.mode} scaling, {study.software}", colour="#555")
    _speedups(drawing, study, found)
    _shares(drawing, found, left=second, width=bars_width)
    return drawing.render()


def _speedups(drawing: Drawing, study: ScalingStudy, found: Sequence[Sequence[ScalingRow]]) -> None:
    left, top, width, height = _PANEL
    rows = [row for group in found for row in group]
    largest = max(2, *(row.step.devices for row in rows))
    lowest = min(1.0, *(row.speedup for row in rows))
    high = max(log2(largest), *(log2(row.speedup) for row in rows))
    low = log2(lowest)

    def place(devices: float, speedup: float) -> tuple[float, float]:
        up = (log2(speedup) - low) / (high - low)
        return left + width * log2(devices) / log2(largest), top + height * (1 - up)

    drawing.text(left, top - 8, "speedup", colour="#333")
    drawing.text(left + width, top + height + 36, "devices", anchor="end", colour="#333")
    for power in range(int(log2(largest)) + 1):
        x, _ = place(2**power, 1.0)
        drawing.line([(x, top), (x, top + height)], colour="#e4e4e4")
        drawing.text(x, top + height + 18, str(2**power), anchor="middle")
    for power in range(int(low), int(high) + 1):
        _, y = place(1.0, 2.0**power)
        drawing.line([(left, y), (left + width, y)], colour="#e4e4e4")
        drawing.text(left - 8, y + 4, f"{2.0**power:g}", anchor="end")
    drawing.line([place(1, 1.0), place(largest, float(largest))], colour="#999", dashed=True)
    for number, group in enumerate(found):
        colour = _COLOURS[number % len(_COLOURS)]
        dots = sorted(((row.step.devices, row) for row in group), key=lambda pair: pair[0])
        drawing.line([place(n, row.speedup) for n, row in dots], colour=colour, width=2.0)
        for n, row in dots:
            drawing.dot(*place(n, row.speedup), colour=colour)
        x = left + (number % 2) * width / 2
        y = top + height + 60 + 18 * (number // 2)
        drawing.line([(x, y - 4), (x + 18, y - 4)], colour=colour, width=2.0)
        drawing.text(x + 24, y, _name(study, group))


def _shares(drawing: Drawing, found: Sequence[Sequence[ScalingRow]], *, left: float, width: float) -> None:
    _, top, _, height = _PANEL
    drawing.text(left, top - 8, "shares of a step", colour="#333")
    x = left
    for number, group in enumerate(found):
        first = x
        for row in group:
            _bar(drawing, row, x)
            drawing.text(x + _BAR / 2, top + height + 16, str(row.step.devices), anchor="middle", size=9)
            x += _BAR * 1.35
        colour = _COLOURS[number % len(_COLOURS)]
        y = top + height + 22
        drawing.line([(first, y), (x - _BAR * 0.35, y)], colour=colour, width=3.0)
        x += 14
    for number, (name, colour) in enumerate(_PARTS):
        place = left + (number % 2) * 110
        y = top + height + 60 + 18 * (number // 2)
        drawing.box(place, y - 10, 12, 12, colour=colour)
        drawing.text(place + 18, y, name)


def _bar(drawing: Drawing, row: ScalingRow, x: float) -> None:
    _, top, _, height = _PANEL
    step = row.step
    parts = (step.fp_bp_s, step.exposed_communication_s, step.update_s, step.overhead_s + step.feeding_s)
    whole = sum(parts)
    y = top + height
    for seconds, (_, colour) in zip(parts, _PARTS, strict=True):
        tall = height * seconds / whole
        y -= tall
        drawing.box(x, y, _BAR, tall, colour=colour)


def _name(study: ScalingStudy, group: Sequence[ScalingRow]) -> str:
    step = group[0].step
    if study.mode == "strong":
        return f"{step.sync}, batch {step.batch_per_device * step.devices} in all"
    return f"{step.sync}, batch {step.batch_per_device}"
