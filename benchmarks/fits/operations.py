"""Fits the constants of pricing/kernels on measured kernels and on published steps of one device.

    python benchmarks/fits/operations.py
    python benchmarks/fits/operations.py --only 'turing.*per_j'    # constants of such names; the others stay

Minimises, over the logarithms of the constants, a robust sum (pseudo-Huber) of the squared errors of the logarithm of
each kernel and each step, and of each constant's distance from what was known before (`operation_priors.py`). Nothing
is fitted for one row, one network or one device. The errors that are written are those of devices and of networks that
were left out of the fit, one after another.

Takes ten minutes on one core once the workloads have been traced.
"""

import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy
from numpy.typing import NDArray
from operation_kernels import Points
from operation_priors import SPREADS, priors
from operation_steps import Steps

from trimaran.pricing.kernels.constants import constants

TARGET = Path(__file__).parents[2] / "src/trimaran/pricing/kernels/constants.toml"
ROBUST = 0.15
"""Errors of the logarithm beyond this count less than by their square."""

KERNELS_COUNT = 0.75
"""How much a group of kernels counts beside a group of steps."""

STEP = 0.02
ROUNDS, ROUNDS_LEFT_OUT = 14, 3

Floats = NDArray[numpy.float64]
Table = Mapping[str, float]


def main(only_fit: bool, only: str | None) -> None:
    points, steps = Points(), Steps()
    print(f"{len(points.measured_s)} kernels, {len(steps.measured_s)} steps", flush=True)
    everything = numpy.ones(len(steps.measured_s))
    if only is not None:
        before = {name: value for name, value in constants().items() if not name.startswith("error.")}
        print(f"before: {_summary(_logarithms(steps, before))}", flush=True)
        table = fit(points, steps, everything, before, ROUNDS, only)
        print(f"after: {_summary(_logarithms(steps, table))}", flush=True)
        TARGET.write_text(_toml(table, tomllib.loads(TARGET.read_text(encoding="utf-8"))["error"]), encoding="utf-8")
        return
    table = fit(points, steps, everything, {name: middle for name, (middle, _) in priors().items()}, ROUNDS)
    errors = _logarithms(steps, table)
    print(f"fitted: {_summary(errors)}", flush=True)
    known = {"fitted": _figures(errors)}
    TARGET.write_text(_toml(table | SPREADS, known), encoding="utf-8")
    if not only_fit:
        for what, groups in (("device", _device_groups(steps)), ("network", _network_groups(steps))):
            left = numpy.zeros(len(errors))
            for group in sorted(set(groups)):
                inside = groups == group
                without = fit(points, steps, 1.0 - inside, dict(table), ROUNDS_LEFT_OUT)
                left[inside] = _logarithms(steps, without)[inside]
                print(f"without {what} {group}: {_summary(left[inside])}", flush=True)
            for family in ("single_gpu_time", "dp_throughput"):
                chosen = numpy.array([row.family == family for row in steps.rows])
                known[f"{what}_left_out_{family}"] = _figures(left[chosen])
    TARGET.write_text(_toml(table | SPREADS, known), encoding="utf-8")


def fit(
    points: Points, steps: Steps, used: Floats, start: dict[str, float], rounds: int, only: str = ""
) -> dict[str, float]:
    """Constants that come closest to the kernels and to the steps that are used, by Gauss and Newton.

    Args:
        points: measured kernels
        steps: measured steps
        used: how much each of them counts
        start: constants to begin with
        rounds: at most
        only: pattern of the names of constants that are fitted; the others stay
    """
    known = priors()
    names = [name for name, (_, spread) in known.items() if spread > 0 and re.search(only, name)]
    middle = numpy.log([known[name][0] for name in names])
    spread = numpy.array([known[name][1] for name in names])
    place = numpy.log([start[name] for name in names])

    def table(at: Floats) -> dict[str, float]:
        found = start | dict(zip(names, numpy.exp(at).tolist(), strict=True))
        return found | {name: min(1.0, value) for name, value in found.items() if name.endswith("rounding")}

    def errors(kernel_s: Floats, step_s: Floats, at: Table) -> Floats:
        return numpy.concatenate([used * steps.errors(step_s, at), KERNELS_COUNT * points.errors(kernel_s)])

    def cost(found: Floats, at: Floats) -> float:
        robust = 2 * ROBUST**2 * (numpy.sqrt(1 + (found / ROBUST) ** 2) - 1)
        return float(robust.sum() + ROBUST**2 * (((at - middle) / spread) ** 2).sum())

    now = table(place)
    found = errors(points.timed.all(now), steps.timed.all(now), now)
    least, damping = cost(found, place), 1e-3
    for _ in range(rounds):
        slopes = _slopes(points, steps, errors, found, table, place, names)
        weight = 1 / numpy.sqrt(1 + (found / ROBUST) ** 2)
        square = (slopes * weight[:, None]).T @ slopes + numpy.diag(ROBUST**2 / spread**2)
        slope = (slopes * weight[:, None]).T @ found + ROBUST**2 * (place - middle) / spread**2
        for _ in range(5):
            move = numpy.linalg.solve(square + damping * numpy.diag(numpy.diag(square)), -slope)
            there = place + numpy.clip(move, -0.5, 0.5)
            now = table(there)
            tried = errors(points.timed.all(now), steps.timed.all(now), now)
            if cost(tried, there) < least:
                break
            damping = max(8 * damping, 1e-2)
        else:
            break
        gain = 1 - cost(tried, there) / least
        place, found, least, damping = there, tried, cost(tried, there), damping / 5
        if gain < 4e-4:
            break
    return table(place)


def _slopes(
    points: Points,
    steps: Steps,
    errors: Callable[[Floats, Floats, Table], Floats],
    found: Floats,
    table: Callable[[Floats], dict[str, float]],
    place: Floats,
    names: list[str],
) -> Floats:
    now = table(place)
    points.timed.all(now)
    steps.timed.all(now)
    slopes = numpy.empty((len(found), len(names)))
    for column, name in enumerate(names):
        there = place.copy()
        there[column] += STEP
        moved = table(there)
        slopes[:, column] = (
            errors(points.timed.changed(name, moved), steps.timed.changed(name, moved), moved) - found
        ) / STEP
    return slopes


def _logarithms(steps: Steps, table: Table) -> Floats:
    return numpy.log(steps.seconds(steps.timed.all(table), table) / steps.measured_s)


def _device_groups(steps: Steps) -> NDArray[numpy.str_]:
    """Sizes and boards of one chip are one group: none of them may help another."""
    return numpy.array([setup.device.split("-")[0] if setup.device[0] in "ap" or setup.device[0] == "v"
                        else setup.device for setup in steps.setups])  # fmt: skip


def _network_groups(steps: Steps) -> NDArray[numpy.str_]:
    def family(name: str) -> str:
        plain = name.split(":")[0]
        for part in ("resnext", "alexnet", "vgg", "inception", "resnet18", "resnet34", "resnet"):
            if part in plain:
                return part
        return plain

    return numpy.array([family(setup.network) for setup in steps.setups])


def _figures(errors: Floats) -> dict[str, float]:
    size = numpy.abs(numpy.expm1(errors))
    return {"median": float(numpy.median(size)), "p80": float(numpy.quantile(size, 0.8)), "rows": len(errors)}


def _summary(errors: Floats) -> str:
    found = _figures(errors)
    return f"{found['rows']} rows, median error {found['median']:.1%}, four of five below {found['p80']:.1%}"


def _toml(table: Table, known: Mapping[str, Mapping[str, float]]) -> str:
    lines = [
        "# Written by benchmarks/fits/operations.py, which says from what. What the constants mean is in the modules",
        "# that use them; shares are of a vendor's peak, times in seconds, years of libraries.",
        "",
    ]
    tables: dict[str, list[tuple[str, float]]] = {}
    for name, value in table.items():
        above, _, last = name.rpartition(".")
        tables.setdefault(above, []).append((last, value))
    for above in sorted(tables):
        lines += ["", f"[{above}]"] if above else []
        lines += [f"{last} = {float(f'{value:.6g}')!r}" for last, value in tables[above]]
    lines += ["", "# Errors of single steps: in the fit, and with a device or a network left out of it."]
    for name, figures in known.items():
        lines += [f"[error.{name}]"] + [f"{figure} = {float(f'{value:.3g}')!r}" for figure, value in figures.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    asked = sys.argv[1:]
    main(only_fit="--only-fit" in asked, only=asked[asked.index("--only") + 1] if "--only" in asked else None)
