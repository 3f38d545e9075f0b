"""Intervals of predicted figures: the components' intervals, adjusted to calibration rows.

Components have intervals for their part. They do not include the difference of a source's script from our model of it.
So a deviation (a standard deviation of the logarithm) combines two independent ones:

    of the step on one device    max(least, factor x deviation of the operators' curves)  0 where it was measured
    of the time devices add      sqrt(base^2 + (slope x share)^2)                         0 on one device

with `share` the part of the step that is exchange, its overhead, and waits for data. The constants minimize the mean
interval score on calibration rows (`benchmarks/fits/intervals.py`).
"""

import functools
import math
from dataclasses import dataclass

from trimaran.base.files import packaged_toml

_NORMAL_90 = 1.645
"""Standard deviations from the middle to either end of a 90 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWidth:
    """The deviation of a step on one device.

    Attributes:
        factor: of the deviation of the curves
        least: smallest deviation
    """

    factor: float
    least: float

    def deviation(self, own: float) -> float:
        """The deviation of a figure whose curves have the deviation `own`."""
        return max(self.least, self.factor * own)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingWidth:
    """The deviation of the time that several devices add.

    Attributes:
        base: for a share 0 of the step
        slope: for a share 1 of the step
    """

    base: float
    slope: float

    def deviation(self, share: float) -> float:
        """The deviation of a step of which devices add a share.

        Example:
            >>> round(ScalingWidth(base=0.03, slope=0.4).deviation(0.1), 4)
            0.05
        """
        return math.hypot(self.base, self.slope * share)


@functools.cache
def step_widths() -> dict[str, StepWidth]:
    """Deviations of a step on one device, by family."""
    return {name: StepWidth(factor=entry["factor"], least=entry["least"]) for name, entry in _table("step").items()}


@functools.cache
def scaling_widths() -> dict[str, ScalingWidth]:
    """Deviations of the time that devices add, for networks that are "built" and of "size only"."""
    return {name: ScalingWidth(base=entry["base"], slope=entry["slope"]) for name, entry in _table("scaling").items()}


@functools.cache
def _table(name: str) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = packaged_toml("trimaran_studies.validation", "intervals.toml").get(name, {})
    return table


def deviation(family: str, *, own: float | None, share: float | None, known: bool) -> float:
    """The deviation of a row's figure.

    Args:
        family: of the row
        own: deviation of the step on one device, by its curves; None where it was measured
        share: of the step that several devices add; None on one device
        known: whether Trimaran builds the network; else only its size is known
    """
    parts = []
    if own is not None:
        width = step_widths().get(family)
        parts.append(own if width is None else width.deviation(own))
    if share is not None:
        scaling = scaling_widths().get("built" if known else "size only")
        parts.append(0.05 if scaling is None else scaling.deviation(share))
    return math.hypot(*parts) if parts else 0.02


def interval(predicted: float, spread: float, *, time: bool) -> tuple[float, float]:
    """A 90 % interval, wider on the slow side: runs are often slower than possible, rarely faster.

    Args:
        predicted: the figure
        spread: its deviation
        time: whether the figure is a time; else it is a rate

    Returns:
        Its ends.
    """
    sides = _table("sides").get("of deviations", {"slow": 1.0, "fast": 1.0})
    slow, fast = (math.exp(_NORMAL_90 * spread * sides[side]) for side in ("slow", "fast"))
    return (predicted / fast, predicted * slow) if time else (predicted / slow, predicted * fast)
