"""Other shapes of convergence curves, each fitted to the same points and judged on points left out as the one in use.

    python benchmarks/fits/convergence_shapes.py FOLDER

FOLDER holds `calibrate/` and `dev/` with core_convergence.csv. The logarithm of the amount is

    ln E0 + ln(1 + (B / Bcrit)^p) + stray of ln B + own stray of each batch

and the stray a random walk ("walk"), a smooth function ("smooth"), one whose slope strays and comes back ("returning"),
or none. The constants of each shape are those under which calibrate/ is most likely, with weak priors; which shape is
best is to be seen from that likelihood, before any point left out is looked at. Printed besides: mean errors and
coverage of points left out, of calibrate/ and of both, and the constants.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtr

sys.path.insert(0, str(Path(__file__).parents[1] / "convergence"))
from catalog import read_tasks

from trimaran.convergence.curve_fit import variances_of_means
from trimaran.convergence.types import CurveTable

Array = NDArray[np.float64]
Table = tuple[Array, Array, Array]
"""Logarithms of batches and of amounts, and the variances of the latter by the luck of runs."""

CRITICALS, STEPS, POWERS = 81, np.linspace(-3.0, 6.0, 7), np.linspace(-2.5, 2.5, 7)
FLAT = 100.0
"""Variance of the level, as good as unknown."""

RETURNS = 1.0
"""Logarithm of the batch over which a slope that strays comes back, or a smooth stray changes."""

FEWEST = 3
TAILS = (0.05, 0.5, 0.95)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Constants: medians and spreads over tables, as in convergence/curve_fit.py; 0: not there."""

    stray: str = "walk"
    roughness: float = 0.06
    roughness_spread: float = 0.4
    critical: float = 1.0
    critical_spread: float = 0.7
    power: float = 1.0
    power_spread: float = 0.0
    own: float = 0.0


PRIORS = {
    "roughness": (0.06, 1.0),
    "roughness_spread": (0.5, 0.5),
    "critical": (1.0, 1.0),
    "critical_spread": (1.0, 0.5),
    "power": (1.0, 0.5),
    "power_spread": (0.2, 0.7),
    "own": (0.03, 1.0),
}
"""Median and deviation of the logarithm of each constant."""

SHAPES = {
    "walk": Shape(),
    "walk, power": Shape(power_spread=0.25),
    "walk, own": Shape(own=0.03),
    "walk, power, own": Shape(power_spread=0.25, own=0.03),
    "smooth, own": Shape(stray="smooth", own=0.03),
    "returning, own": Shape(stray="returning", own=0.03),
    "own alone": Shape(stray="none", own=0.03),
    "own alone, power": Shape(stray="none", own=0.03, power_spread=0.25),
}


def main(folder: Path) -> None:
    """Fit each shape and print how it foretells."""
    calibrate = [columns(table) for table in read_tasks(folder, ("calibrate",)).values() if len(table.points) > 1]
    every = [columns(table) for table in read_tasks(folder).values()]
    for name, start in SHAPES.items():
        shape, likely = fitted(start, calibrate)
        print(f"{name:18s} ln likelihood {likely:6.2f}", end="")
        for title, tables in (("calibrate", calibrate), ("all", every)):
            inner, ends, covered = judged(shape, tables)
            mean = statistics.fmean(inner + ends)
            print(
                f" | {title}: {len(inner + ends)} points, mean {mean:.1%} (inside {statistics.fmean(inner):.1%}, "
                f"ends {statistics.fmean(ends):.1%}), covered {statistics.fmean(covered):.0%}",
                end="",
            )
        print(f"\n  {shape}", flush=True)


def columns(table: CurveTable) -> Table:
    x = np.log([float(point.global_batch) for point in table.points])
    return x, np.log([point.amount for point in table.points]), variances_of_means(table.points)


def fitted(start: Shape, tables: Sequence[Table]) -> tuple[Shape, float]:
    """The constants that are most likely under weak priors, of those that a shape has; and the likelihood."""
    names = [f.name for f in fields(start) if f.name in PRIORS and getattr(start, f.name)]
    if start.stray == "none":
        names = [name for name in names if not name.startswith("roughness")]
    if not start.power_spread:
        names.remove("power")

    def made(logs: Sequence[float]) -> Shape:
        return replace(start, **{name: math.exp(value) for name, value in zip(names, logs, strict=True)})

    def loss(logs: Sequence[float]) -> float:
        away = sum(((v - math.log(PRIORS[n][0])) / PRIORS[n][1]) ** 2 for n, v in zip(names, logs, strict=True))
        return away / 2.0 - sum(evidence(made(logs), *table)[0] for table in tables)

    first = [math.log(getattr(start, name)) for name in names]
    simplex = [first] + [[v + 0.4 * (i == j) for j, v in enumerate(first)] for i in range(len(first))]
    options = {"initial_simplex": simplex, "maxfev": 50 * len(names), "xatol": 0.01, "fatol": 0.01}
    found = minimize(loss, first, method="Nelder-Mead", options=options)
    return made(found.x), -float(found.fun)


def covariance(shape: Shape, a: Array, b: Array, roughness: float, span: float) -> Array:
    """Of the stray between batches, with an unknown level."""
    far = np.abs(a[:, None] - b[None, :])
    found = np.full(far.shape, FLAT)
    if shape.stray == "walk":
        found += roughness**2 * (2.0 * span - far)
    elif shape.stray == "smooth":
        near = math.sqrt(3.0) * far / (2.0 * RETURNS)
        found += (2.0 * roughness) ** 2 * (1.0 + near) * np.exp(-near)
    elif shape.stray == "returning":
        # Integrated Ornstein-Uhlenbeck slope; a constant more or less changes nothing, the level being unknown.
        found -= roughness**2 * (far / RETURNS + np.exp(-far / RETURNS))
    return found + shape.own**2 * (far < 1e-9)


def grid(shape: Shape, x: Array) -> tuple[Array, Array, Array]:
    """Logarithm of Bcrit and p of each pair, and the logarithm of its prior."""
    criticals = np.linspace(x.min() - 4.0, x.max() + 8.0, CRITICALS)
    steps = POWERS if shape.power_spread else np.zeros(1)
    powers = shape.power * np.exp(shape.power_spread * steps)
    usual = student((criticals - x.max() - math.log(shape.critical)) / shape.critical_spread)
    prior = usual[:, None] - 0.5 * steps[None, :] ** 2
    return np.repeat(criticals, len(powers)), np.tile(powers, len(criticals)), prior.ravel()


def student(away: Array) -> Array:
    found: Array = -2.5 * np.log1p(np.square(away) / 4.0)
    return found


def rises(x: Array, criticals: Array, powers: Array) -> Array:
    found: Array = np.logaddexp(0.0, powers[:, None] * (x[None, :] - criticals[:, None]))
    return found


def evidence(shape: Shape, x: Array, y: Array, variances: Array) -> tuple[float, Array, Array]:
    """Logarithm of the likelihood, weights of all triples (roughnesses, pairs), and the roughnesses."""
    criticals, powers, prior = grid(shape, x)
    residuals = y[None, :] - rises(x, criticals, powers)
    steps = STEPS if shape.stray != "none" else np.zeros(1)
    roughnesses = shape.roughness * np.exp(shape.roughness_spread * steps)
    logs, before = [], []
    for step, roughness in zip(steps, roughnesses, strict=True):
        matrix = covariance(shape, x, x, roughness, float(np.ptp(x))) + np.diag(variances)
        inverse = np.linalg.inv(matrix)
        ones = inverse.sum(1)
        left = residuals - (residuals @ ones / ones.sum())[:, None]
        squares = ((left @ inverse) * left).sum(1)
        before.append(prior + student(step))
        logs.append(before[-1] - 0.5 * (np.linalg.slogdet(matrix)[1] + math.log(ones.sum()) + squares))
    found = np.array(logs)
    most = float(found.max())
    weights = np.exp(found - most)
    total = most + math.log(weights.sum()) - float(np.logaddexp.reduce(np.concatenate(before)))
    return total, weights / weights.sum(), roughnesses


def foretold(shape: Shape, x: Array, y: Array, variances: Array, at: float, luck: float) -> Array:
    """Ends and middle of the logarithm of the amount at a batch whose mean has a variance of its own: (3,)."""
    criticals, powers, _ = grid(shape, x)
    _, weights, roughnesses = evidence(shape, x, y, variances)
    place = np.array([at])
    form = rises(place, criticals, powers)[:, 0]
    residuals = y[None, :] - rises(x, criticals, powers)
    span = float(max(x.max(), at) - min(x.min(), at))
    means, deviations = [], []
    for roughness in roughnesses:
        inverse = np.linalg.inv(covariance(shape, x, x, roughness, span) + np.diag(variances))
        between = covariance(shape, x, place, roughness, span)[:, 0]
        ones = inverse.sum(1)
        shares = inverse @ between + ones * (1.0 - ones @ between) / ones.sum()
        beyond = (1.0 - ones @ between) ** 2 / ones.sum()
        own = covariance(shape, place, place, roughness, span)[0, 0] - between @ inverse @ between
        means.append(form + residuals @ shares)
        deviations.append(np.full(len(form), math.sqrt(max(own + beyond, 1e-12) + luck)))
    return quantiles(np.concatenate(means), np.concatenate(deviations), weights.ravel())


def quantiles(means: Array, deviations: Array, weights: Array) -> Array:
    low, high = (np.full(len(TAILS), end) for end in ((means - 6 * deviations).min(), (means + 6 * deviations).max()))
    for _ in range(40):
        middle = (low + high) / 2.0
        below = weights @ ndtr((middle[None, :] - means[:, None]) / deviations[:, None]) < TAILS
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2.0


def judged(shape: Shape, tables: Sequence[Table]) -> tuple[list[float], list[float], list[bool]]:
    """Errors of points left out inside and at ends, and whether their intervals hold them."""
    inner: list[float] = []
    ends: list[float] = []
    covered = []
    for x, y, variances in tables:
        for number in range(len(x) if len(x) >= FEWEST else 0):
            some = np.arange(len(x)) != number
            low, middle, high = foretold(shape, x[some], y[some], variances[some], x[number], variances[number])
            (inner if 0 < number < len(x) - 1 else ends).append(abs(math.expm1(middle - y[number])))
            covered.append(bool(low <= y[number] <= high))
    return inner, ends, covered


if __name__ == "__main__":
    main(Path(sys.argv[1]))
