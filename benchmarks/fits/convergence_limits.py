"""What limits how well convergence curves foretell points left out: luck of runs, the model's constants, or the points.

    python benchmarks/fits/convergence_limits.py FOLDER

FOLDER holds `calibrate/` and `dev/` with core_convergence.csv. Printed is the mean of |predicted / measured - 1| over
all points, each foretold by the others of its table:

- that the luck of runs leaves, were every point on E0 * (1 + B / Bcrit): the form, linear about its fit;
- that the model expects, if curves stray as its constants say;
- as it is;
- with the constants that make this very figure smallest: no estimator of this kind can honestly do better;
- of simple rules: the line through the logarithms of the two nearest points, inside and beyond; the same with the mean
  slope at the ends of all other tables of calibrate/ beyond; the form alone.
"""

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

sys.path.insert(0, str(Path(__file__).parents[1] / "convergence"))
from catalog import read_tasks
from convergence import left_out

from trimaran.convergence.curve_fit import ConvergenceConstants, convergence_constants, fit_form, variances_of_means
from trimaran.convergence.types import CurveTable

Array = NDArray[np.float64]
Rule = Callable[[str, Array, Array, float], float]
"""Logarithm of what a table, its batches and amounts as logarithms, needs at another batch."""

FEWEST = 3
MEAN_OF_NORMAL = math.sqrt(2.0 / math.pi)
WIDTH_OF_NORMAL = 2 * 1.645
EVALUATIONS = 150


def main(folder: Path) -> None:
    """Print the figures."""
    calibrate, every = read_tasks(folder, ("calibrate",)), read_tasks(folder)
    tables = {name: table for name, table in every.items() if len(table.points) >= FEWEST}
    points = left_out(tables, convergence_constants())
    expected = [math.log(point.high / point.low) / WIDTH_OF_NORMAL * MEAN_OF_NORMAL for point in points]
    say("luck of runs alone", [size for table in tables.values() for size in luck(table)])
    say("expected by the model", expected)
    say("as it is", [abs(point.error) for point in points])
    say("neighbours", simple(tables, along_neighbours))
    say("neighbours, mean slopes", simple(tables, mean_slopes(calibrate)))
    say("the form alone", simple(tables, form_alone))
    constants = smallest(tables)
    say("constants for this figure", [abs(point.error) for point in left_out(tables, constants)])
    print(constants)


def say(title: str, errors: Sequence[float]) -> None:
    """One line."""
    print(f"{title:28s} {len(errors)} points: mean {statistics.fmean(errors):.1%}", flush=True)


def luck(table: CurveTable) -> list[float]:
    """Mean error of each point of a table, foretold by the others through the form, if runs' luck were all."""
    fit, variances = fit_form(table), variances_of_means(table.points)
    batches = np.array([float(point.global_batch) for point in table.points])
    slopes = np.stack([np.ones(len(batches)), 1.0 / (1.0 + fit.b_crit / batches)], 1)
    found = []
    for number in range(len(batches)):
        others = np.arange(len(batches)) != number
        unsure = np.linalg.pinv((slopes[others].T / variances[others]) @ slopes[others])
        variance = variances[number] + slopes[number] @ unsure @ slopes[number]
        found.append(MEAN_OF_NORMAL * math.sqrt(variance))
    return found


def smallest(tables: dict[str, CurveTable]) -> ConvergenceConstants:
    """The constants, but for the spread of runs, that make the mean error of points left out smallest."""
    start = convergence_constants()
    names = [field.name for field in fields(start) if field.name != "run_spread"]

    def loss(logs: Sequence[float]) -> float:
        made = replace(start, **{name: math.exp(value) for name, value in zip(names, logs, strict=True)})
        return statistics.fmean(abs(point.error) for point in left_out(tables, made))

    first = [math.log(getattr(start, name)) for name in names]
    simplex = [first] + [[v - 0.7 * (i == j) for j, v in enumerate(first)] for i in range(len(first))]
    found = minimize(loss, first, method="Nelder-Mead", options={"initial_simplex": simplex, "maxfev": EVALUATIONS})
    return replace(start, **{name: math.exp(value) for name, value in zip(names, found.x, strict=True)})


def simple(tables: dict[str, CurveTable], rule: Rule) -> list[float]:
    """Errors of a rule at points left out."""
    found = []
    for name, table in tables.items():
        x, y = logarithms(table)
        for number in range(len(x)):
            others = np.arange(len(x)) != number
            found.append(abs(math.expm1(rule(name, x[others], y[others], float(x[number])) - y[number])))
    return found


def logarithms(table: CurveTable) -> tuple[Array, Array]:
    """Of batches and amounts."""
    x = np.log([float(point.global_batch) for point in table.points])
    return x, np.log([point.amount for point in table.points])


def along_neighbours(_: str, x: Array, y: Array, at: float) -> float:
    """Along the line through the two nearest points on either side, or the last two."""
    left = min(max(int(np.searchsorted(x, at)) - 1, 0), len(x) - 2)
    slope = (y[left + 1] - y[left]) / (x[left + 1] - x[left])
    return float(y[left] + slope * (at - x[left]))


def mean_slopes(tables: dict[str, CurveTable]) -> Rule:
    """Between points along their line; beyond them with the mean slope at that end of all other tables."""
    ends = {}
    for name, table in tables.items():
        if len(table.points) > 1:
            x, y = logarithms(table)
            slopes = np.diff(y) / np.diff(x)
            ends[name] = (float(slopes[0]), float(slopes[-1]))

    def rule(name: str, x: Array, y: Array, at: float) -> float:
        if x[0] < at < x[-1]:
            return along_neighbours(name, x, y, at)
        side, place = (0, 0) if at < x[0] else (1, -1)
        slope = statistics.fmean(pair[side] for other, pair in ends.items() if other != name)
        return float(y[place] + slope * (at - x[place]))

    return rule


def form_alone(_: str, x: Array, y: Array, at: float) -> float:
    """By the form with the least squares of logarithms."""
    criticals = np.linspace(x[0] - 5.0, x[-1] + 7.0, 600)
    left = y[None, :] - np.logaddexp(0.0, x[None, :] - criticals[:, None])
    best = int(left.var(1).argmin())
    return float(left[best].mean() + np.logaddexp(0.0, at - criticals[best]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
