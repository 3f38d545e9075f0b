"""E(B) = E0 · (1 + B / Bcrit), fitted to the points of a table, with intervals.

The logarithms are fitted by weighted least squares. For one Bcrit the best E0 is a weighted mean, so that the search is
along one line. Intervals come from tables drawn anew: the mean of a batch is moved as its runs drawn again lie, where
they are known, and by its spread; and by what the form itself leaves unexplained.

Source:
    The form: McCandlish et al., arXiv 1812.06162, equation 2.11, with samples and updates exchanged.
"""

import math

import numpy as np
from numpy.typing import NDArray

from trimaran.costs.convergence.constants import convergence_constants
from trimaran.costs.convergence.spreads import variances_of_means
from trimaran.costs.convergence.types import CurveTable, Fit, Point

_LINE = 481
"""Values of Bcrit that are tried, evenly in its logarithm."""

_BELOW, _ABOVE = 100.0, 1000.0
"""Bcrit is sought from the smallest batch over this to the largest times that; beyond it counts as infinite."""

_DRAWS = 500
_TAILS = (5.0, 95.0)
_SAME = 1e-9
"""Means whose logarithms differ by less are equal but for rounding."""

Array = NDArray[np.float64]


def fit_form(table: CurveTable) -> Fit:
    """Fit the form to a table.

    Args:
        table: amounts in epochs, samples or tokens, not steps

    Returns:
        The fit; with one point E0 is its amount and Bcrit is infinite.

    Example:
        >>> points = tuple(Point(global_batch=b, amount=10 * (1 + b / 512)) for b in (64, 256, 1024))
        >>> fit = fit_form(CurveTable(task="t", unit="epochs", points=points, source="by hand"))
        >>> round(fit.e0, 6), round(fit.b_crit, 3), round(fit.rms, 6)
        (10.0, 512.0, 0.0)
    """
    points = table.points
    batches = np.array([float(point.global_batch) for point in points])
    amounts = np.log([point.amount for point in points])
    variances = variances_of_means(points)
    if len(points) == 1:
        return _fit_of_one(points[0], math.sqrt(variances[0]))
    # What the form does not explain weighs as one run's luck, so that no point of many runs rules alone.
    weights = 1.0 / (variances + convergence_constants().run_spread ** 2)
    line = np.linspace(math.log(batches.min() / _BELOW), math.log(batches.max() * _ABOVE), _LINE)
    levels, criticals = _best(batches, amounts[None, :], weights, line)
    b_crit = _or_infinite(criticals[0], line)
    e0 = math.exp(levels[0] if math.isfinite(b_crit) else amounts @ weights / weights.sum())
    predicted = math.log(e0) + np.log1p(batches / b_crit)
    misfit = _misfit(amounts - predicted, variances)
    drawn = _drawn(points, predicted, amounts, variances, misfit)
    e0s, b_crits = _best(batches, drawn, weights, line)
    ends = [_or_infinite(float(end), line) for end in np.percentile(b_crits, _TAILS)]
    low, high = np.exp(np.percentile(e0s, _TAILS))
    return Fit(
        e0=e0,
        b_crit=b_crit,
        e0_interval=(min(float(low), e0), max(float(high), e0)),
        b_crit_interval=(min(ends[0], b_crit), max(ends[1], b_crit)),
        rms=float(np.sqrt(np.mean((np.exp(predicted - amounts) - 1.0) ** 2))),
    )


def _best(batches: Array, amounts: Array, weights: Array, line: Array) -> tuple[Array, Array]:
    """Logarithms of E0 and Bcrit of each row of amounts.

    Args:
        batches: (n,)
        amounts: logarithms, (rows, n)
        weights: (n,)
        line: values of ln Bcrit to try, (k,)

    Returns:
        Two arrays (rows,).
    """
    weights = weights / weights.sum()
    rises = np.log1p(batches[None, :] / np.exp(line)[:, None])
    # Σw(a − r − mean)² as a quadratic form in a and r, so that nothing of size rows × k × n is made.
    centred = rises - (rises @ weights)[:, None]
    mean = amounts @ weights
    squares = (weights * centred * centred).sum(1)[None, :] - 2.0 * ((amounts - mean[:, None]) * weights) @ centred.T
    found = np.argmin(squares, axis=1)
    inner = np.clip(found, 1, len(line) - 2)
    rows = np.arange(len(amounts))
    left, middle, right = squares[rows, inner - 1], squares[rows, inner], squares[rows, inner + 1]
    bend = left - 2.0 * middle + right
    moved = np.where(bend > 0, 0.5 * (left - right) / np.where(bend > 0, bend, 1.0), 0.0)
    criticals = np.where(found == inner, line[inner] + np.clip(moved, -1, 1) * (line[1] - line[0]), line[found])
    if len(amounts) == 1 and found[0] == inner[0]:
        criticals = _refined(batches, amounts[0], weights, criticals, line[1] - line[0])
    levels = mean - np.log1p(batches[None, :] / np.exp(criticals)[:, None]) @ weights
    return levels, criticals


def _refined(batches: Array, amounts: Array, weights: Array, critical: Array, step: float) -> Array:
    """Logarithm of Bcrit by golden section about a first guess."""

    def squares(value: float) -> float:
        left = amounts - np.log1p(batches / math.exp(value))
        return float((weights * (left - left @ weights) ** 2).sum())

    low, high = float(critical[0]) - step, float(critical[0]) + step
    share = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(60):
        a, b = high - share * (high - low), low + share * (high - low)
        low, high = (low, b) if squares(a) <= squares(b) else (a, high)
    return np.array([(low + high) / 2.0])


def _misfit(residuals: Array, variances: Array) -> float:
    """Standard deviation of what neither the form nor the luck of runs explains."""
    free = max(len(residuals) - 2, 1)
    return math.sqrt(max(0.0, float((residuals**2).sum()) / free - float(variances.mean())))


def _drawn(points: tuple[Point, ...], predicted: Array, amounts: Array, variances: Array, misfit: float) -> Array:
    """Tables drawn anew: logarithms of amounts, (draws, n)."""
    source = np.random.default_rng(0)
    unexplained = source.standard_normal((_DRAWS, len(points))) * misfit
    moved = np.empty((_DRAWS, len(points)))
    for column, (point, variance) in enumerate(zip(points, variances, strict=True)):
        luck = source.standard_normal(_DRAWS) * math.sqrt(variance)
        if len(point.values) >= 3 and len(set(point.values)) > 1:
            runs = source.choice(point.values, size=(_DRAWS, len(point.values)))
            strays = np.log(runs.mean(1) / point.amount)
            # As these runs lie, and as far as runs are thought to stray: few that are nearly equal prove no certainty.
            if strays.std() > _SAME:
                luck = strays / strays.std() * math.sqrt(variance)
        moved[:, column] = luck
    # Around the points where runs are all that strays; around the form where the points themselves stray from it.
    centre = predicted if misfit > 0 else amounts
    return centre[None, :] + unexplained + moved


def _or_infinite(critical: float, line: Array) -> float:
    return math.inf if critical >= line[-1] - 1e-9 else float(math.exp(critical))


def _fit_of_one(point: Point, deviation: float) -> Fit:
    ends = math.exp(1.645 * deviation)
    known = convergence_constants()
    least = point.global_batch * known.critical_over_largest * math.exp(-1.645 * known.critical_spread)
    smallest = point.amount / (1.0 + point.global_batch / least) / ends
    return Fit(
        e0=point.amount,
        b_crit=math.inf,
        e0_interval=(smallest, point.amount * ends),
        b_crit_interval=(least, math.inf),
        rms=0.0,
    )
