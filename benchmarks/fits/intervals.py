"""Chooses the widths of intervals on calibration rows: of steps on one device, and of what several devices add.

    python benchmarks/fits/intervals.py

Writes src/trimaran_studies/validation/intervals.toml. Each pair of constants is the one whose mean interval score on
the calibration rows is smallest. Machines and networks with many rows weigh less than their number, because what is
asked for later are other ones; for the same reason deviations are multiplied by `UNSEEN_STEP` and `UNSEEN_SCALING`:
errors on machines and networks that were left out of the fits of constants, as a multiple of those that were not.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import TrimaranError
from trimaran_studies.facts.sizes import SIZED
from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation import intervals
from trimaran_studies.validation.intervals import ScalingWidth, StepWidth, interval
from trimaran_studies.validation.measurement import Anchor, Row, is_time
from trimaran_studies.validation.scores import interval_score
from trimaran_studies.validation.steps import RowStep
from trimaran_studies.validation.validate import row_forecast

TARGET = Path(intervals.__file__).with_name("intervals.toml")
FACTORS = [0.0, *(0.25 * 1.15**step for step in range(22))]
LEASTS = [0.01 * 1.1**step for step in range(40)]
BASES = [least for least in LEASTS if least >= 0.04]
"""Not less than what one device's figures of one set-up differ by from run to run and table to table."""

SLOPES = [0.0, *(0.05 * 1.2**step for step in range(13))]
"""To 0.45: what several devices add is known to better than a factor of two (1.645 deviations)."""

SIDES = [0.5 + 0.05 * step for step in range(31)]
NORMAL_90 = 1.645
UNSEEN_STEP = 1.4
UNSEEN_SCALING = 1.5
FAMILIES = ("single_gpu_time", "dp_throughput", "dp_step_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A row: how far off its figure is, and what its deviation may follow from."""

    group: tuple[str, str]
    measured: float
    predicted: float
    drive: float
    time: bool


def main() -> None:
    TARGET.write_text("# Written by benchmarks/fits/intervals.py.\n", encoding="utf-8")
    rows = [row for row in published_rows() if row.fields["use"] == "calibrate" and row.family in FAMILIES]
    fitted: list[tuple[float, Point, float]] = []
    lines = ["# Written by benchmarks/fits/intervals.py from calibration rows.\n\n[step]\n"]
    for family in FAMILIES:
        points = [point for row in rows if row.family == family and (point := _alone(row))]
        if len(points) >= 12:
            lines.append(_line(family, ("factor", "least"), FACTORS, LEASTS, points, _step, UNSEEN_STEP, fitted))
    lines.append("\n[scaling]\n")
    for name, known in (("built", True), ("size only", False)):
        points = [point for row in rows if (point := _scaled(row, known=known))]
        lines.append(_line(name, ("base", "slope"), BASES, SLOPES, points, _scaling, UNSEEN_SCALING, fitted))
    lines.append(_sides(fitted))
    TARGET.write_text("".join(lines), encoding="utf-8")
    tomllib.loads(TARGET.read_text(encoding="utf-8"))
    print("".join(lines))


def _alone(row: Row) -> Point | None:
    return _point(row, "none", lambda found: found.deviation if found.scaled is None else None)


def _scaled(row: Row, *, known: bool) -> Point | None:
    if row.anchor is None:
        return None
    point = _point(row, "single", lambda found: found.added_share)
    return point if point is not None and (point.group[1].startswith(SIZED) != known) else None


def _point(row: Row, anchor: Anchor, drive: Callable[[RowStep], float | None]) -> Point | None:
    try:
        setup, found, predicted = row_forecast(row, anchor=anchor)
    except TrimaranError:
        return None
    value = drive(found)
    if value is None or row.flag:
        return None
    group = (setup.machine.node.name, setup.network)
    return Point(group=group, measured=row.measured, predicted=predicted, drive=value, time=is_time(row))


def _step(factor: float, least: float, own: float) -> float:
    return StepWidth(factor=factor, least=least).deviation(own)


def _scaling(base: float, slope: float, share: float) -> float:
    return ScalingWidth(base=base, slope=slope).deviation(share)


def _line(
    name: str,
    names: tuple[str, str],
    firsts: Sequence[float],
    seconds: Sequence[float],
    points: Sequence[Point],
    deviation: Callable[[float, float, float], float],
    unseen: float,
    fitted: list[tuple[float, Point, float]],
) -> str:
    counts = Counter(point.group for point in points)
    weights = [1 / math.sqrt(counts[point.group]) for point in points]
    total = sum(weights)
    best = (math.inf, 0.0, 0.0, 0.0)
    for first in firsts:
        for second in seconds:
            score = inside = 0.0
            for weight, point in zip(weights, points, strict=True):
                low, high = interval(point.predicted, deviation(first, second, point.drive), time=point.time)
                score += weight * interval_score(point.measured, low, high) / total
                inside += weight * (low <= point.measured <= high) / total
            best = min(best, (score, first, second, inside))
    score, first, second, inside = best
    fitted.extend(
        (weight, point, deviation(first, second, point.drive)) for weight, point in zip(weights, points, strict=True)
    )
    return (
        f'"{name}" = {{ {names[0]} = {first * unseen:.3g}, {names[1]} = {second * unseen:.3g} }}'
        f"  # {len(points)} rows in {len(counts)} groups, score {score:.3f}, inside {inside:.0%}, then x {unseen}\n"
    )


def _sides(fitted: Sequence[tuple[float, Point, float]]) -> str:
    """How much farther than a deviation an interval reaches to the slow side, and to the fast one."""
    best = (math.inf, 1.0, 1.0)
    for slow in SIDES:
        for fast in SIDES:
            score = 0.0
            for weight, point, spread in fitted:
                reaches = math.exp(NORMAL_90 * spread * slow), math.exp(NORMAL_90 * spread * fast)
                down, up = reversed(reaches) if point.time else reaches
                score += weight * interval_score(point.measured, point.predicted / down, point.predicted * up)
            best = min(best, (score, slow, fast))
    _, slow, fast = best
    return f'\n[sides]\n"of deviations" = {{ slow = {slow:.3g}, fast = {fast:.3g} }}\n'


if __name__ == "__main__":
    main()
