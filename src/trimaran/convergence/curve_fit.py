"""Amount of training that a batch needs, from the points of a table and the form, as a distribution.

The logarithm of the amount is ln E0 + ln(1 + B / Bcrit) plus a stray that walks at random over ln B. So a prediction
passes through the points, follows the form between them, and grows unsure with the distance to the nearest.

    ln E ┤        ╱░       E0: unknown level
         │     ●─●░░       Bcrit: weighed by how well the points agree with it, and by where it lay in other tables
         │  ●─╱  ░░░       roughness of the walk: likewise
         └──────────── ln B

For one Bcrit and one roughness all distributions are normal and have formulas. Both run over a grid, each pair weighed
by its likelihood: the prediction is the mixture. Where single runs jump from batch to batch more than is likely, they
are taken as noisy: the prediction goes between them.

E(B) = E0 · (1 + B / Bcrit), fitted to the points of a table, with intervals.

The logarithms are fitted by weighted least squares. For one Bcrit the best E0 is a weighted mean, so that the search is
along one line. Intervals come from tables drawn anew: the mean of a batch is moved as its runs drawn again lie, where
they are known, and by its spread; and by the residual of the form.

Source:
    The form: McCandlish et al., arXiv 1812.06162, equation 2.11, with samples and updates exchanged.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.base.files import packaged_toml
from trimaran.convergence.types import CurveTable, Fit, Point

# ---------------------------------------------------------------------------------------------------------------------
# Constants of convergence curves that no law gives: fitted by benchmarks/fits/convergence.py to published tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceConstants:
    """How curves of published tables behave.

    Attributes:
        run_spread: standard deviation of the logarithm of one run's amount
        roughness: how far a curve strays from E0 · (1 + B / Bcrit) over a batch e times as large, as a standard
            deviation of the logarithm; median over tables
        roughness_spread: standard deviation of the logarithm of that from table to table
        critical_over_largest: Bcrit over the largest batch that somebody measured, median over tables
        critical_spread: scale of the logarithm of that
    """

    run_spread: float
    roughness: float
    roughness_spread: float
    critical_over_largest: float
    critical_spread: float


@functools.cache
def convergence_constants() -> ConvergenceConstants:
    """The constants as fitted."""
    found = packaged_toml("trimaran.convergence", "constants.toml")
    return ConvergenceConstants(**{name: float(found[name]) for name in ConvergenceConstants.__slots__})


# ---------------------------------------------------------------------------------------------------------------------
# Error of the mean over a batch's runs: the luck of its runs


_PRIOR_RUNS = 4
"""Number of runs that the pooled spread counts as, added to those of a batch."""

FEW = 3
"""From this number of runs on, a mean is taken as it is, if they vary as published ones do; fewer are drawn to their
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

    The prediction passes through a mean as sure as one of three published runs, and through a figure without a stated
    error. One or two runs among tables of more are drawn to their neighbours, and so are means of runs with a larger
    spread, in proportion to their additional variance.

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


_CRITICALS = 161
_ROUGHNESSES = np.linspace(-3.0, 9.0, 17)
_NOISES = (0.0, 0.1, 0.2, 0.4, 0.8)
"""Standard deviations of the logarithm that single runs may have besides; the first needs no proof."""

_PROOF = math.log(20.0)
_BELOW, _ABOVE = 4.0, 8.0
"""ln Bcrit runs from that of the smallest batch minus the one to that of the largest plus the other."""

_NEGLIGIBLE = 1e-5
_HALVINGS = 45
_TAIL = 0.05

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Mixture:
    """The weighed pairs for a table of n points.

    Attributes:
        criticals: ln Bcrit of each pair, (k,)
        roughness: of each pair, (k,)
        weights: of each pair, summing to 1, (k,)
        evidence: logarithm of the likelihood of the table, all pairs together
        luck: variance of each point's mean, (n,)
        held: variance with which each point draws the prediction; 0: it passes through, (n,)
        noise: standard deviation that single runs have besides
    """

    criticals: Array
    roughness: Array
    weights: Array
    evidence: float
    luck: Array
    held: Array
    noise: float


def predict_amounts(
    points: tuple[Point, ...],
    batches: tuple[int, ...],
    extra: tuple[float, ...] = (),
    *,
    given: bool = False,
    constants: ConvergenceConstants | None = None,
) -> Array:
    """Median and 90 % interval of the amount that batches need.

    Args:
        points: of one table, by rising batch
        batches: to predict
        extra: variance of the logarithm that each comes with besides, as the mean of few runs has; none: 0
        given: the points are given and not measured: pass through them however they lie
        constants: how curves behave; None: as fitted

    Returns:
        Low end, median, high end, one column a batch: (3, batches).
    """
    if not batches:
        return np.empty((3, 0))
    at = np.log([float(batch) for batch in batches])
    mixture = _weighed(points, constants or convergence_constants())
    x, y = _columns(points)
    held = np.zeros(len(points)) if given else mixture.held
    means, deviations = [], []
    for roughness in np.unique(mixture.roughness):
        of_this = mixture.roughness == roughness
        rises = np.logaddexp(0.0, x[None, :] - mixture.criticals[of_this, None])
        forms = np.logaddexp(0.0, at[None, :] - mixture.criticals[of_this, None])
        stray, spread = _kriged(x, y[None, :] - rises, held, mixture.luck, roughness, at)
        means.append(forms + stray)
        deviations.append(np.broadcast_to(np.sqrt(spread + (np.array(extra) if extra else 0.0)), stray.shape))
    order = np.argsort(mixture.roughness, kind="stable")
    weights = mixture.weights[order]
    return np.exp(_quantiles(np.concatenate(means), np.concatenate(deviations), weights, (_TAIL, 0.5, 1 - _TAIL)))


def log_evidence(points: tuple[Point, ...], constants: ConvergenceConstants) -> float:
    """Log-likelihood of a table under some constants, up to a constant."""
    return _weighed(points, constants).evidence


def noise_of_single_runs(points: tuple[Point, ...]) -> float:
    """Additional standard deviation of the logarithm of a table's single runs beyond the usual one; 0 where none."""
    return _weighed(points, convergence_constants()).noise


@functools.lru_cache(maxsize=256)
def _weighed(points: tuple[Point, ...], known: ConvergenceConstants) -> _Mixture:
    quiet = _weighed_with(points, known, _NOISES[0])
    if not any(point.runs < FEW for point in points):
        return quiet
    noisy = [_weighed_with(points, known, noise) for noise in _NOISES[1:]]
    likeliest = max(noisy, key=lambda mixture: mixture.evidence)
    return likeliest if likeliest.evidence > quiet.evidence + _PROOF else quiet


def _weighed_with(points: tuple[Point, ...], known: ConvergenceConstants, noise: float) -> _Mixture:
    x, y = _columns(points)
    luck, held = variances_of_means(points), variances_held_against(points)
    if noise:
        luck = luck + np.where([point.runs < FEW for point in points], noise**2, 0.0)
        held = np.where([point.runs < FEW for point in points], luck, held)
    criticals = np.linspace(x.min() - _BELOW, x.max() + _ABOVE, _CRITICALS)
    away = (criticals - x.max() - math.log(known.critical_over_largest)) / known.critical_spread
    usual = _log_student(away)
    residuals = y[None, :] - np.logaddexp(0.0, x[None, :] - criticals[:, None])
    rows, before = [], []
    for number in _ROUGHNESSES:
        roughness = known.roughness * math.exp(known.roughness_spread * number)
        before.append(usual + _log_student(number))
        rows.append(_log_likelihood(x, residuals, luck, roughness) + before[-1])
    logs = np.concatenate(rows)
    weights = np.exp(logs - logs.max())
    evidence = float(logs.max()) + math.log(weights.sum()) - math.log(np.exp(np.concatenate(before)).sum())
    weights /= weights.sum()
    kept = weights > _NEGLIGIBLE
    values = known.roughness * np.exp(known.roughness_spread * np.repeat(_ROUGHNESSES, len(criticals)))
    return _Mixture(
        criticals=np.tile(criticals, len(_ROUGHNESSES))[kept],
        roughness=values[kept],
        weights=weights[kept] / weights[kept].sum(),
        evidence=evidence,
        luck=luck,
        held=held,
        noise=noise,
    )


def _log_student(away: Array) -> Array:
    """Student's density with 4 degrees, up to a constant: outliers are rare, but not impossible."""
    found: Array = -2.5 * np.log1p(np.square(away) / 4.0)
    return found


def _columns(points: tuple[Point, ...]) -> tuple[Array, Array]:
    x = np.log([float(point.global_batch) for point in points])
    return x, np.log([point.amount for point in points])


def _covariance(a: Array, b: Array, roughness: float, span: float) -> Array:
    """Of the walk, with a level that is as good as unknown: only differences matter."""
    found: Array = roughness**2 * (2.0 * span + 10.0 - np.abs(a[:, None] - b[None, :]))
    return found


def _log_likelihood(x: Array, residuals: Array, variances: Array, roughness: float) -> Array:
    """Of each row of residuals, the level integrated out: (k,)."""
    inverse, ones, total, determinant = _solved(x, variances, roughness, float(np.ptp(x)))
    level = residuals @ ones / total
    left = residuals - level[:, None]
    found: Array = -0.5 * (determinant + math.log(total) + ((left @ inverse) * left).sum(1))
    return found


def _solved(x: Array, variances: Array, roughness: float, span: float) -> tuple[Array, Array, float, float]:
    matrix = _covariance(x, x, roughness, span) + np.diag(variances)
    inverse = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    ones = inverse @ np.ones(len(x))
    return inverse, ones, float(ones.sum()), float(np.linalg.slogdet(matrix)[1])


def _kriged(x: Array, residuals: Array, held: Array, luck: Array, roughness: float, at: Array) -> tuple[Array, Array]:
    """Mean (rows, m) and variance (m,) of the stray and the level at new places, given rows of residuals.

    The mean is a weighed mean of the residuals, by the inverse variance of each point; its error has the luck of their
    runs in it by the same weights. Where the prediction passes through a mean of lucky runs, it shares their luck.
    """
    span = float(max(x.max(), at.max()) - min(x.min(), at.min()))
    inverse, ones, total, _ = _solved(x, held, roughness, span)
    between = _covariance(x, at, roughness, span)
    shares = inverse @ between + np.outer(ones, (1.0 - ones @ between) / total)
    strays = _covariance(x, x, roughness, span) + np.diag(luck)
    variance = roughness**2 * (2.0 * span + 10.0) + (shares * (strays @ shares - 2.0 * between)).sum(0)
    return residuals @ shares, np.maximum(variance, 1e-12)


def _quantiles(means: Array, deviations: Array, weights: Array, shares: tuple[float, ...]) -> Array:
    """Quantiles of mixtures of normals, one mixture a column: (shares, m)."""
    from scipy.special import ndtr  # Ranks of a run import this package too, and need none of it.

    found = []
    for share in shares:
        low = (means - 6.0 * deviations).min(0)
        high = (means + 6.0 * deviations).max(0)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2.0
            below = weights @ ndtr((middle[None, :] - means) / deviations) < share
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        found.append((low + high) / 2.0)
    return np.array(found)


_LINE = 481
"""Values of Bcrit that are tried, evenly in its logarithm."""

_BCRIT_BELOW, _BCRIT_ABOVE = 100.0, 1000.0
"""Bcrit is sought from the smallest batch over this to the largest times that; beyond it counts as infinite."""

_DRAWS = 500
_TAILS = (5.0, 95.0)
_SAME = 1e-9
"""Means whose logarithms differ by less are equal but for rounding."""


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
    # The residual of the form weighs as one run's luck, so that no point of many runs decides alone.
    weights = 1.0 / (variances + convergence_constants().run_spread ** 2)
    line = np.linspace(math.log(batches.min() / _BCRIT_BELOW), math.log(batches.max() * _BCRIT_ABOVE), _LINE)
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
    """Standard deviation of the residual that neither the form nor the luck of runs explains."""
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
