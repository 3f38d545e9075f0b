"""How far the mean over a batch's runs may be from what that batch needs: the luck of its runs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimaran.costs.convergence.constants import convergence_constants
from trimaran.costs.convergence.types import Point

_PRIOR_RUNS = 4
"""Runs that the pooled spread counts as beside a batch's own."""

FEW = 3
"""From so many runs on a mean is taken as it is, where they stray as published ones do; fewer are drawn to their
neighbours."""


def variances_of_means(points: Sequence[Point]) -> NDArray[np.float64]:
    """Variance of the logarithm of each point's amount.

    The spread over the runs of a batch is weighed with that of all batches of the table as with four runs more, and
    that with the spread of published tables likewise, so that three equal runs are no proof of certainty. Where only
    one figure is known it counts as one run.

    Args:
        points: of one table

    Returns:
        One figure a point.
    """
    published = convergence_constants().run_spread ** 2
    spreads = [_own_variance(point) for point in points]
    degrees = sum(point.runs - 1 for point, own in zip(points, spreads, strict=True) if own is not None)
    squares = sum(own * (point.runs - 1) for point, own in zip(points, spreads, strict=True) if own is not None)
    pooled = (_PRIOR_RUNS * published + squares) / (_PRIOR_RUNS + degrees)
    found = []
    for point, own in zip(points, spreads, strict=True):
        if own is None:
            found.append(pooled / max(point.runs, 1))
        else:
            shrunk = (_PRIOR_RUNS * pooled + (point.runs - 1) * own) / (_PRIOR_RUNS + point.runs - 1)
            found.append(shrunk / point.runs)
    return np.array(found)


def variances_held_against(points: Sequence[Point]) -> NDArray[np.float64]:
    """Variances with which the points draw a prediction to themselves.

    A mean that is as sure as one of three published runs, or a figure of which nothing is said, is passed through. One
    or two runs among tables of more are drawn to their neighbours, and so are means of runs that stray further, by what
    they are less sure than that.

    Args:
        points: of one table

    Returns:
        One figure a point; 0 where the prediction passes through it.
    """
    if all(point.runs == 1 for point in points):
        return np.zeros(len(points))
    found = variances_of_means(points)
    beyond = np.maximum(0.0, found - convergence_constants().run_spread ** 2 / FEW)
    return np.where([point.runs >= FEW for point in points], beyond, found)


def _own_variance(point: Point) -> float | None:
    """Variance of the logarithm of one run's amount; None where fewer than two runs are known."""
    if point.runs < 2 or point.deviation is None:
        return None
    return float((point.deviation / point.amount) ** 2)
