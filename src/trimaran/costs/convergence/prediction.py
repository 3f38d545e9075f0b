"""What a batch needs, from the points of a table and the form, as a distribution.

The logarithm of the amount is ln E0 + ln(1 + B / Bcrit) plus a stray that walks at random over ln B. So a prediction
passes through the points, follows the form between them, and grows unsure with the distance to the nearest.

    ln E ┤        ╱░       E0: unknown level
         │     ●─●░░       Bcrit: weighed by how well the points agree with it, and by where it lay in other tables
         │  ●─╱  ░░░       roughness of the walk: likewise
         └──────────── ln B

For one Bcrit and one roughness everything is normal and closed. Both run over a grid, each pair weighed by its
likelihood: the prediction is the mixture. Where single runs jump from batch to batch more than that makes likely, they
are taken as noisy: the prediction goes between them.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.costs.convergence.constants import ConvergenceConstants, convergence_constants
from trimaran.costs.convergence.spreads import FEW, variances_held_against, variances_of_means
from trimaran.costs.convergence.types import Point

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
    """How likely constants make a table: the logarithm, up to what they do not change."""
    return _weighed(points, constants).evidence


def noise_of_single_runs(points: tuple[Point, ...], constants: ConvergenceConstants | None = None) -> float:
    """Standard deviation of the logarithm that single runs of a table have beyond what is usual; 0 where none shows."""
    return _weighed(points, constants or convergence_constants()).noise


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
    """Student's density with 4 degrees, up to a constant: far from what is usual is rare, but not impossible."""
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

    The mean is a weighed mean of the residuals, by what is held against each point; its error has the luck of their
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
