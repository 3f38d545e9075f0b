"""How well a curve foretells a batch that it was not shown: each point left out in turn."""

import math
from dataclasses import dataclass

from trimaran.costs.convergence.constants import ConvergenceConstants
from trimaran.costs.convergence.prediction import noise_of_single_runs, predict_amounts
from trimaran.costs.convergence.spreads import FEW, variances_of_means
from trimaran.costs.convergence.types import CurveTable

_FEWEST = 3
_MOST = 20
"""Points that are left out of a long table, evenly chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A point foretold from the others.

    Attributes:
        global_batch: of the point [samples]
        measured: its amount
        predicted: from the others
        low: lower end of 90 %
        high: upper end of 90 %
        inside: others lie on both sides
    """

    global_batch: int
    measured: float
    predicted: float
    low: float
    high: float
    inside: bool

    @property
    def error(self) -> float:
        """Predicted / measured − 1."""
        return self.predicted / self.measured - 1.0

    @property
    def covered(self) -> bool:
        """The interval holds what was measured."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Leave-one-out figures of one or several tables.

    Attributes:
        rms: of the form at the points, predicted / measured − 1; None without points
        left_out: every point that was left out
    """

    rms: float | None
    left_out: tuple[LeftOut, ...]

    @property
    def mean(self) -> float | None:
        """Mean of the size of the errors over all points left out."""
        return _mean([abs(point.error) for point in self.left_out])

    @property
    def mean_inside(self) -> float | None:
        """The same over points that have others on both sides."""
        return _mean([abs(point.error) for point in self.left_out if point.inside])

    @property
    def coverage(self) -> float | None:
        """Share of the points left out that lie in their 90 % interval."""
        return _mean([float(point.covered) for point in self.left_out])


def leave_one_out(table: CurveTable, *, constants: ConvergenceConstants | None = None) -> tuple[LeftOut, ...]:
    """Foretell each point of a table from the others.

    The interval is that of the mean over the point's runs, so their luck counts.

    Args:
        table: in epochs, samples or tokens
        constants: how curves behave; None: as fitted

    Returns:
        One entry a point; none where fewer than three are there.
    """
    points = table.points
    if len(points) < _FEWEST:
        return ()
    luck = variances_of_means(points)
    step = max(1, math.ceil(len(points) / _MOST))
    found = []
    for number in range(0, len(points), step):
        point, others = points[number], points[:number] + points[number + 1 :]
        noise = noise_of_single_runs(others, constants) if point.runs < FEW else 0.0
        extra = (float(luck[number]) + noise**2,)
        low, middle, high = predict_amounts(others, (point.global_batch,), extra, constants=constants)[:, 0]
        found.append(
            LeftOut(
                global_batch=point.global_batch,
                measured=point.amount,
                predicted=float(middle),
                low=float(low),
                high=float(high),
                inside=0 < number < len(points) - 1,
            )
        )
    return tuple(found)


def pooled(qualities: list[tuple[Quality, int]]) -> Quality:
    """Quality over several tables.

    Args:
        qualities: of each, with its number of points

    Returns:
        Root mean square over all points, every point left out.
    """
    squares = [(quality.rms**2, count) for quality, count in qualities if quality.rms is not None]
    count = sum(number for _, number in squares)
    rms = math.sqrt(sum(square * number for square, number in squares) / count) if count else None
    return Quality(rms=rms, left_out=tuple(point for quality, _ in qualities for point in quality.left_out))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
