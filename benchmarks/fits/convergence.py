"""Fits how convergence curves behave to reference points, and says how well they then foretell points left out.

    python benchmarks/fits/convergence.py FOLDER [--write]

FOLDER holds `calibrate/` and `dev/` with core_convergence.csv. Only calibrate/ is fitted to: the spread of runs is the
median over tables of published ones; the place of Bcrit and roughness are where the tables are most likely, with weak
priors, since each table has few points. What makes intervals wider (roughness, its spread over tables, and that of
Bcrit) is then taken a standard error higher: that they are too narrow is the worse mistake. (The most likely roughness
covered 92 % of calibrate/ and 78 % of dev/; a standard error of it alone left 89 % of both, all three 90 %. These steps
were made with dev/ in sight, their size by calibrate/ alone.) What is printed: points of calibrate/ left out, points of
dev/ foretold from those of calibrate/ alone, and points of both left out.
"""

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

sys.path.insert(0, str(Path(__file__).parents[1] / "convergence"))
from catalog import read_tasks

from trimaran.convergence.curve import LeftOut, leave_one_out
from trimaran.convergence.curve_fit import (
    ConvergenceConstants,
    convergence_constants,
    log_evidence,
    predict_amounts,
    variances_of_means,
)
from trimaran.convergence.types import CurveTable

TARGET = Path(__file__).parents[2] / "src/trimaran/convergence/constants.toml"
START = (math.log(0.06), math.log(0.5), 0.0, math.log(1.0))
PRIORS = ((math.log(0.06), 1.0), (math.log(0.5), 0.5), (0.0, 1.0), (0.0, 0.5))
"""Centre and deviation of the logarithms of roughness, its spread, Bcrit over the largest batch, and its spread."""

WIDENS = np.array([1.0, 1.0, 0.0, 1.0])
"""Standard errors that each is taken higher by: not where Bcrit lies, which widens nothing."""

Array = NDArray[np.float64]


def main(arguments: Sequence[str]) -> None:
    """Fit, print, and with --write keep."""
    folder = Path(arguments[0])
    calibrate, every = read_tasks(folder, ("calibrate",)), read_tasks(folder)
    spread = run_spread(list(calibrate.values()))
    constants = fit(list(calibrate.values()), spread)
    for field in fields(constants):
        print(f"{field.name} = {getattr(constants, field.name):.4g}")
    say("calibrate, left out", left_out(calibrate, constants))
    say("dev, from calibrate", foretold(calibrate, every, constants))
    say("all, left out", left_out(every, constants))
    if "--write" in arguments:
        lines = [f"{field.name} = {getattr(constants, field.name):.4g}" for field in fields(constants)]
        head = "# Written by benchmarks/fits/convergence.py from the reference points of published/calibrate.\n"
        TARGET.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def run_spread(tables: Sequence[CurveTable]) -> float:
    """Relative deviation over runs: root mean square within a table, median over tables."""
    squares = []
    for table in tables:
        known = [p.deviation / p.amount for p in table.points if p.deviation is not None and p.runs > 1]
        if known:
            squares.append(statistics.fmean(value * value for value in known))
    return math.sqrt(statistics.median(squares))


def fit(tables: Sequence[CurveTable], spread: float) -> ConvergenceConstants:
    """The most likely constants under weak priors."""

    def loss(values: Sequence[float]) -> float:
        made = constants_of(values, spread)
        likely = sum(log_evidence(table.points, made) for table in tables if len(table.points) > 1)
        away = sum(((value - centre) / width) ** 2 for value, (centre, width) in zip(values, PRIORS, strict=True))
        return away / 2.0 - likely

    simplex = [list(START)] + [[v + 0.4 * (i == j) for j, v in enumerate(START)] for i in range(len(START))]
    found = minimize(loss, START, method="Nelder-Mead", options={"initial_simplex": simplex, "maxfev": 160})
    best = np.array(found.x)
    errors = standard_errors(loss, best)
    return constants_of([*(best + WIDENS * errors)], spread)


def standard_errors(loss: Callable[[Sequence[float]], float], best: Array, step: float = 0.15) -> Array:
    """Of values at the minimum of a negative logarithm of a likelihood, from its curvature there."""
    moves = step * np.eye(len(best))
    curvature = [
        [loss(best + a + b) - loss(best + a - b) - loss(best - a + b) + loss(best - a - b) for b in moves]
        for a in moves
    ]
    found: Array = np.sqrt(np.diag(np.linalg.inv(np.array(curvature) / (4.0 * step**2))))
    return found


def constants_of(values: Sequence[float], spread: float) -> ConvergenceConstants:
    """Constants by the logarithms that are searched."""
    roughness, roughness_spread, over_largest, critical_spread = (float(f"{math.exp(v):.4g}") for v in values)
    return ConvergenceConstants(
        run_spread=float(f"{spread:.4g}"),
        roughness=roughness,
        roughness_spread=roughness_spread,
        critical_over_largest=over_largest,
        critical_spread=critical_spread,
    )


def left_out(tables: dict[str, CurveTable], constants: ConvergenceConstants) -> list[LeftOut]:
    """Every point of every table, foretold by the others of its table."""
    return [point for table in tables.values() for point in leave_one_out(table)]


def foretold(
    known: dict[str, CurveTable], every: dict[str, CurveTable], constants: ConvergenceConstants
) -> list[LeftOut]:
    """Points of tables that the known part of the table has not, foretold by that part."""
    found = []
    for name, table in every.items():
        base = known.get(name)
        if base is None or len(base.points) < 2:
            continue
        held = {point.global_batch for point in base.points}
        luck = variances_of_means(table.points)
        for point, variance in zip(table.points, luck, strict=True):
            if point.global_batch in held:
                continue
            batch = point.global_batch
            ends = predict_amounts(base.points, (batch,), (float(variance),), constants=constants)[:, 0]
            found.append(
                LeftOut(
                    global_batch_size=batch,
                    measured=point.amount,
                    predicted=float(ends[1]),
                    interval=(float(ends[0]), float(ends[2])),
                    inside=min(held) < batch < max(held),
                )
            )
    return found


def say(title: str, points: Sequence[LeftOut]) -> None:
    """Print errors and coverage, of those inside the data and of those beyond."""
    for name, some in (
        ("", points),
        (" inside", [p for p in points if p.inside]),
        (" beyond", [p for p in points if not p.inside]),
    ):
        if some:
            errors = [abs(point.error) for point in some]
            covered = statistics.fmean(float(point.covered) for point in some)
            width = np.median([math.log(point.interval[1] / point.interval[0]) for point in some])
            print(
                f"{title + name:28s} {len(some):3d} points: mean {statistics.fmean(errors):.1%}, "
                f"median {statistics.median(errors):.1%}, covered {covered:.1%}, median width {width:.2f}"
            )


if __name__ == "__main__":
    print(f"before: {convergence_constants()}")
    main(sys.argv[1:])
