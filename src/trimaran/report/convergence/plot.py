"""A convergence curve as a drawing: points, the prediction with its interval, and the form, both axes logarithmic.

amount           ╱░
     ●       ●─●╱░░   points, prediction, 90 %
     └─●──●─╱─ ─ ─    the form, dashed
      └──────────── batch
"""

import math

from trimaran.costs.convergence.checks import LARGEST_BATCH
from trimaran.report.convergence.lines import figure
from trimaran.report.convergence.study import CurveStudy
from trimaran.report.scaling.svg import Drawing

_LEFT, _TOP, _WIDTH, _HEIGHT = 84.0, 66.0, 560.0, 320.0
_PLACES = 121
_BEYOND = 2.0
_TICKS = (1.0, 2.0, 5.0)


def plot(study: CurveStudy) -> str:
    """The drawing as text of an SVG file, from half the smallest to twice the largest batch."""
    curve, table = study.curve, study.curve.table
    asked = [entry.global_batch for entry in study.asked]
    first = min([curve.range[0] / _BEYOND, *asked])
    last = max([min(curve.range[1] * _BEYOND, LARGEST_BATCH), *asked])
    batches = sorted(
        {min(max(1, round(first * (last / first) ** (n / (_PLACES - 1)))), LARGEST_BATCH) for n in range(_PLACES)}
    )
    needs = curve.needs(tuple(batches))
    lowest = min(min(need.low for need in needs), min(point.amount for point in table.points))
    highest = max(max(need.high for need in needs), max(point.amount for point in table.points))
    across = (math.log(batches[0]), math.log(batches[-1]))
    up = (math.log(lowest) - 0.05, math.log(highest) + 0.05)

    def place(batch: float, amount: float) -> tuple[float, float]:
        x = (math.log(batch) - across[0]) / max(across[1] - across[0], 1e-9)
        y = (math.log(amount) - up[0]) / (up[1] - up[0])
        return _LEFT + _WIDTH * x, _TOP + _HEIGHT * (1.0 - min(max(y, 0.0), 1.0))

    drawing = Drawing(width=_LEFT + _WIDTH + 36, height=_TOP + _HEIGHT + 92)
    drawing.text(_LEFT, 24, table.task, size=15, bold=True)
    drawing.text(_LEFT, 42, f"{table.unit} to the target by global batch" + _projected(study), colour="#555")
    for batch in _ticks(batches[0], batches[-1]):
        x, _ = place(batch, highest)
        drawing.line([(x, _TOP), (x, _TOP + _HEIGHT)], colour="#e4e4e4")
        drawing.text(x, _TOP + _HEIGHT + 18, figure(batch), anchor="middle")
    for amount in _ticks(math.exp(up[0]), math.exp(up[1])):
        _, y = place(batches[0], amount)
        drawing.line([(_LEFT, y), (_LEFT + _WIDTH, y)], colour="#e4e4e4")
        drawing.text(_LEFT - 8, y + 4, figure(amount), anchor="end")
    for end in ("low", "high"):
        line = [place(batch, getattr(need, end)) for batch, need in zip(batches, needs, strict=True)]
        drawing.line(line, colour="#9db8d2")
    form = [place(batch, curve.fit.e0 * (1 + batch / curve.fit.b_crit)) for batch in batches]
    drawing.line(form, colour="#999", dashed=True)
    drawing.line([place(b, need.amount) for b, need in zip(batches, needs, strict=True)], colour="#1b6ca8", width=2.0)
    for point in table.points:
        for value in point.values:
            drawing.dot(*place(point.global_batch, value), colour="#e3a1a9")
        drawing.dot(*place(point.global_batch, point.amount), colour="#d1495b")
    _legend(drawing)
    return drawing.render()


def _legend(drawing: Drawing) -> None:
    y = _TOP + _HEIGHT + 52
    entries = (("predicted", "#1b6ca8", False), ("90 %", "#9db8d2", False), ("E0 (1 + B / Bcrit)", "#999", True))
    for number, (name, colour, dashed) in enumerate(entries):
        x = _LEFT + number * 130
        drawing.line([(x, y - 4), (x + 18, y - 4)], colour=colour, width=2.0, dashed=dashed)
        drawing.text(x + 24, y, name)
    drawing.dot(_LEFT + 440, y - 4, colour="#d1495b")
    drawing.text(_LEFT + 450, y, "points")
    drawing.text(_LEFT + _WIDTH, _TOP + _HEIGHT + 36, "global batch [samples]", anchor="end", colour="#333")


def _ticks(low: float, high: float) -> list[float]:
    """Round figures between two: powers of ten, with 2 and 5 where the range is short."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    kinds = _TICKS if high / low < 2000 else (1.0,)
    return [kind * 10.0**power for power in powers for kind in kinds if low <= kind * 10.0**power <= high]


def _projected(study: CurveStudy) -> str:
    return " (a study's projection)" if study.curve.table.projection else ""
