"""Fits the constants of `trimaran.pricing.collectives` on measured curves; says how wrong it is on what was left out.

    python benchmarks/fits/collectives.py            # errors of the constants as they are
    python benchmarks/fits/collectives.py --write    # fits them again, a few minutes, and writes constants.toml

Four questions are put to the model: a curve it has not seen of a machine that it knows; a machine it has not seen; a
whole generation of links it has not seen; all operations of a machine but all-reduce. Constants are chosen for small
errors on all four.
"""

import argparse
import collections
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from trimaran.pricing.collectives import prediction as kriging
from trimaran.pricing.collectives.links import family
from trimaran.pricing.collectives.prediction import GRID, MeasuredCurve, constants, fitted_curves, prior_time

CONSTANTS = Path(kriging.__file__).with_name("constants.toml")
FIXED = {"tcp_limit", "call_empty", "pattern_year", "reached_virtual", "hop_ethernet", "reached_network", "call_stream"}
"""Constants that no curve here decides, or only by telling campaigns apart (years)."""

QUESTIONS = ("curve", "machine", "kind", "operations")
"""What is left out, in the order of `_left_out`."""

Tables = dict[str, dict[str, float]]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="fit again and write constants.toml")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the search for the kernel")
    parser.add_argument("--intervals", action="store_true", help="fit only the intervals again")
    options = parser.parse_args()
    known: Tables = {name: dict(table) for name, table in constants().items()}
    if options.write:
        known["prior"] = fit_prior(fitted_curves(), known["prior"])
        known["kernel"] = fit_kernel(fitted_curves(), known, rounds=options.rounds)
    if options.write or options.intervals:
        known["intervals"] = fit_intervals(fitted_curves(), known)
        known["errors"] = errors(fitted_curves(), known)
        CONSTANTS.write_text(toml(known), encoding="utf-8")
    report(fitted_curves(), known)


def fit_prior(curves: tuple[MeasuredCurve, ...], start: Mapping[str, float]) -> dict[str, float]:
    """Constants of the prior: least squares of logarithms, that ignore outliers, drawn a little to where they start."""
    names = [name for name in start if name not in FIXED]
    first, shares = np.log([start[name] for name in names]), _shares(curves)

    def residuals(x: np.ndarray) -> np.ndarray:
        known = dict(start) | dict(zip(names, np.exp(x), strict=True))
        parts = []
        for curve, share in zip(curves, shares, strict=True):
            seconds = prior_time(curve.op, GRID, curve.group, curve.timing, known, year=curve.year)
            there = ~np.isnan(curve.times_s)
            parts.append(np.log(curve.times_s[there] / seconds[there]) * math.sqrt(share / there.sum()))
        return np.concatenate([*parts, 0.05 * (x - first)])

    solution = least_squares(residuals, first, loss="soft_l1", f_scale=0.05)
    return dict(start) | {name: float(np.exp(value)) for name, value in zip(names, solution.x, strict=True)}


def fit_kernel(curves: tuple[MeasuredCurve, ...], known: Tables, *, rounds: int) -> dict[str, float]:
    """Constants of the kernel: one after the other up and down, as long as what was left out is predicted better."""
    best, table = score(curves, known), dict(known["kernel"])
    for round_ in range(rounds):
        for name in list(table):
            for factor in (0.5, 0.75, 1.33, 2.0) if name not in FIXED else ():
                trial = table | {name: min(table[name] * factor, 12.0)}
                value = score(curves, known | {"kernel": trial})
                if value < best - 1e-5:
                    best, table = value, trial
        print(f"round {round_}: {best:.4f}", flush=True)
    return table


def score(curves: tuple[MeasuredCurve, ...], known: Tables) -> float:
    """What the search makes small: mean error, none counted above 1, and a little of how unlikely what happened was."""
    total, shares = 0.0, _shares(curves)
    for weight, error, surprise, spread in _left_out(curves, known, range(0, len(GRID), 3)):
        unlikely = 0.5 * np.minimum(surprise**2, 25) + np.log(spread)
        cost = np.minimum(error, 1.0) + 0.02 * np.where(np.isnan(error), np.nan, unlikely)
        by_curve = np.nanmean(cost, axis=1, where=~np.isnan(cost))
        total += weight * float(np.nansum(by_curve * shares) / np.sum(shares[~np.isnan(by_curve)]))
    return total


def _shares(curves: Iterable[MeasuredCurve]) -> np.ndarray:
    """Weight of each curve: a machine with many curves counts more than one with few, but not in proportion."""
    nodes = [curve.group.node for curve in curves]
    count = collections.Counter(nodes)
    return np.array([count[node] ** -0.5 for node in nodes])


def fit_intervals(curves: tuple[MeasuredCurve, ...], known: Tables) -> dict[str, float]:
    """Scale of the spread, for each family, so that nine in ten of the measured times that were left out are inside."""
    families = np.array([family(curve.group) for curve in curves])
    answers = [
        answer
        for name, answer in zip(QUESTIONS, _left_out(curves, known, range(len(GRID))), strict=True)
        if name != "kind"
    ]
    table = {"repeat": known["intervals"]["repeat"]}
    for name in ("links", "pcie", "network"):
        parts = [np.abs(surprise[families == name]) for _, _, surprise, _ in answers]
        table[f"scale_{name}"] = float(np.mean([np.nanquantile(part, 0.9) for part in parts])) / 1.645
    return table


def errors(curves: tuple[MeasuredCurve, ...], known: Tables) -> dict[str, float]:
    """Median and 80th percentile of the error, for each question."""
    result = {}
    for name, (_, error, _, _) in zip(QUESTIONS, _left_out(curves, known, range(len(GRID))), strict=True):
        there = error[~np.isnan(error)]
        result[f"{name}_left_out_median"] = float(np.median(there))
        result[f"{name}_left_out_p80"] = float(np.quantile(there, 0.8))
    return result


def report(curves: tuple[MeasuredCurve, ...], known: Tables) -> None:
    """Prints errors by machine."""
    for name, (_, error, surprise, _) in zip(QUESTIONS, _left_out(curves, known, range(len(GRID))), strict=True):
        by_machine: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
        for row, curve in zip(error, curves, strict=True):
            by_machine[curve.group.node, curve.timing].extend(row[~np.isnan(row)])
        print(f"{name} left out")
        for (node, timing), values in sorted(by_machine.items()):
            print(f"  {node:20} {timing:10} median {np.median(values):6.1%}  p90 {np.quantile(values, 0.9):6.1%}")
        there = error[~np.isnan(error)]
        scales = np.array([known["intervals"][f"scale_{family(curve.group)}"] for curve in curves])
        inside = np.mean((np.abs(surprise) < 1.645 * scales[:, None])[~np.isnan(error)])
        print(f"  all: median {np.median(there):.1%}, p80 {np.quantile(there, 0.8):.1%}, inside 90 %: {inside:.1%}")


def _left_out(
    curves: tuple[MeasuredCurve, ...], known: Tables, sizes: Iterable[int]
) -> Iterable[tuple[float, np.ndarray, np.ndarray, np.ndarray]]:
    """For each question its weight, and by curve and size: error, deviation in spreads, spread."""
    _, strays, covariances = kriging.covariance_of(curves, known)
    seen = strays.T
    inverses = {size: np.linalg.inv(covariances[size]) for size in sizes}
    weights = {size: inverses[size] @ strays[size] for size in sizes}
    questions: tuple[tuple[float, Callable[[MeasuredCurve], object]], ...] = (
        (1.0, id),
        (1.0, lambda curve: curve.group.node),
        (0.3, lambda curve: (curve.group.kind, curve.group.generation, curve.group.card_kind)),
        (1.0, lambda curve: id(curve) if curve.op == "all_reduce" else curve.group.node),
    )
    times = np.array([curve.times_s for curve in curves])
    for weight, key in questions:
        members = collections.defaultdict(list)
        for index, curve in enumerate(curves):
            members[key(curve)].append(index)
        mean, spread = np.full_like(times, np.nan), np.full_like(times, np.nan)
        for group in members.values():
            for size in sizes:
                # The conditional distribution of some given all others, from the inverse of the whole covariance.
                covariance = np.linalg.inv(inverses[size][np.ix_(group, group)])
                mean[group, size] = seen[group, size] - covariance @ weights[size][group]
                spread[group, size] = np.sqrt(np.maximum(np.diag(covariance), 1e-6))
        error = np.abs(np.exp(mean - seen) - 1)
        error[np.isnan(times)] = np.nan
        yield weight, error, (seen - mean) / spread, spread


def toml(tables: Tables) -> str:
    """The tables as TOML."""
    lines = ["# Made by benchmarks/fits/collectives.py from curves.csv; `errors` are of what was left out of the fit."]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {value:.4g}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
