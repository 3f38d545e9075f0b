"""How well curves of known laws are recovered from tables of 4 to 8 batches, with runs that stray.

    python benchmarks/fits/convergence_laws.py [TABLES]

For each law, spread of runs (none, 5 %, 15 %) and number of runs a batch, TABLES tables (30) are drawn: batches rise by
1.5, 2 or 4, Bcrit lies between 0.12 and 3 times the largest. Printed over them: the mean error and the coverage of
points left out, inside and at the two ends; the coverage of the law itself at the measured batches, between them, and
at twice the largest; and, where the form is the law, the coverage of E0 and Bcrit. Nothing is fitted here.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.convergence.curve import Curve, LeftOut, fit_curve, leave_one_out
from trimaran.convergence.types import CurveTable, Point

Law = Callable[[float, float, float], float]
"""Amount at B / Bcrit and at B, with a power p between 0.1 and 0.6."""

LAWS: dict[str, Law] = {
    "E0 (1 + B / Bcrit)": lambda ratio, _, p: 1 + ratio,
    "1 + (B / Bcrit)^0.8-1.7": lambda ratio, _, p: 1 + ratio ** (0.6 + 1.8 * p),
    "sqrt(1 + (B / Bcrit)^2)": lambda ratio, _, p: math.hypot(1, ratio),
    "flat, then linear": lambda ratio, _, p: max(1.0, ratio),
    "power B^0.1-0.6": lambda _, batch, p: batch**p,
    "flat": lambda _, batch, p: 1.0,
}
FORM = "E0 (1 + B / Bcrit)"
SPREADS, RUNS = (0.0, 0.05, 0.15), (1, 3, 5)
Held = tuple[str, bool]
"""A place, and whether the interval there holds what it should."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A table and what it was drawn from."""

    table: CurveTable
    amount: Callable[[float], float]
    e0: float
    b_crit: float


def main(arguments: Sequence[str]) -> None:
    """Draw the tables and print a line a law, a spread, a number of runs, and all."""
    count = int(arguments[0]) if arguments else 30
    found: dict[tuple[str, float, int], tuple[list[LeftOut], list[Held]]] = {}
    for number, law in enumerate(LAWS):
        for spread in SPREADS:
            for runs in RUNS if spread else (1,):
                source = np.random.default_rng([number, round(100 * spread), runs])
                tables = [draw(source, LAWS[law], spread, runs) for _ in range(count)]
                left_out = [point for drawn in tables for point in leave_one_out(drawn.table)]
                held = [one for drawn in tables for one in judged(drawn, of_form=law == FORM)]
                found[law, spread, runs] = left_out, held
    for law in LAWS:
        say(law, [both for key, both in found.items() if key[0] == law])
    for spread in SPREADS:
        say(f"spread {spread:.0%}", [both for key, both in found.items() if key[1] == spread])
    for runs in RUNS:
        say(f"runs {runs}, straying", [both for key, both in found.items() if key[2] == runs and key[1]])
    say("all", list(found.values()))


def draw(source: np.random.Generator, law: Law, spread: float, runs: int) -> Drawn:
    """A table of 4 to 8 batches."""
    ratio, first = source.choice([2.0, 2.0, 2.0, 4.0, 1.5]), 2 ** source.integers(3, 9)
    batches = [round(float(first * ratio**step)) for step in range(source.integers(4, 9))]
    b_crit = batches[-1] * math.exp(source.uniform(math.log(0.12), math.log(3.0)))
    e0, power = math.exp(source.uniform(0.0, 4.0)), source.uniform(0.1, 0.6)

    def amount(batch: float) -> float:
        return e0 * law(batch / b_crit, batch, power)

    points = []
    for batch in batches:
        values = amount(batch) * np.exp(source.standard_normal(runs) * spread - spread**2 / 2)
        told = {} if runs == 1 else {"deviation": float(values.std(ddof=1)), "values": tuple(map(float, values))}
        points.append(Point(global_batch=batch, amount=float(values.mean()), runs=runs, **told))
    table = CurveTable(task="drawn", unit="epochs", points=tuple(points), source="drawn")
    return Drawn(table=table, amount=amount, e0=e0, b_crit=b_crit)


def judged(drawn: Drawn, *, of_form: bool) -> Iterator[Held]:
    """Whether the intervals of a table's curve hold the law."""
    curve: Curve = fit_curve(drawn.table)
    batches = [point.global_batch for point in drawn.table.points]
    between = [round(math.sqrt(a * b)) for a, b in itertools.pairwise(batches)]
    for place, asked in (("at", batches), ("between", between), ("twice", [2 * batches[-1]])):
        for batch, need in zip(asked, curve.needs(tuple(asked)), strict=True):
            yield place, need.low <= drawn.amount(batch) <= need.high
    if of_form:
        yield "E0", curve.fit.e0_interval[0] <= drawn.e0 <= curve.fit.e0_interval[1]
        yield "Bcrit", curve.fit.b_crit_interval[0] <= drawn.b_crit <= curve.fit.b_crit_interval[1]


def say(title: str, found: Sequence[tuple[list[LeftOut], list[Held]]]) -> None:
    """One line."""
    points = [point for left_out, _ in found for point in left_out]
    held = [one for _, some in found for one in some]
    ends = [point for point in points if not point.inside]
    parts = [
        f"{name} {np.mean([abs(p.error) for p in some]):.1%}, covered {np.mean([p.covered for p in some]):.0%}"
        for name, some in (("left out", points), ("inside", [p for p in points if p.inside]), ("ends", ends))
    ]
    for place in ("at", "between", "twice", "E0", "Bcrit"):
        some = [holds for name, holds in held if name == place]
        if some:
            parts.append(f"{place} {np.mean(some):.0%}")
    print(f"{title:24s} " + " | ".join(parts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
