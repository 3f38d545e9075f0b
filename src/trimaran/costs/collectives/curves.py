"""Measured curves of collectives, thinned to powers of two.

`curves.csv` has a line for each machine, operation and number of devices: what the group is, how the time was taken,
and the time at 4 B, 8 B, … 16 GiB in microseconds, empty where nobody measured. `benchmarks/fits/collectives.py` makes
it. Sizes count as in `closed_forms`.
"""

import csv
import functools
import math
from dataclasses import dataclass
from importlib import resources
from typing import cast

import numpy as np

from trimaran.costs.collectives.groups import CardKind, Group, LinkKind, Timing
from trimaran.costs.collectives.prior import Sizes

FIRST_POWER, LAST_POWER = 2, 34
GRID: Sizes = np.array([2.0**power for power in range(FIRST_POWER, LAST_POWER + 1)])
"""Sizes of all curves [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredCurve:
    """Times of one operation on one group.

    Attributes:
        op: the operation
        group: the devices
        timing: how the time was taken
        year: of the library
        times_s: at each size of `GRID`; not a number where nobody measured [s]
        source: where they come from
    """

    op: str
    group: Group
    timing: Timing
    year: float
    times_s: Sizes
    source: str


@functools.cache
def measured_curves() -> tuple[MeasuredCurve, ...]:
    """All curves of `curves.csv`."""
    text = resources.files("trimaran.costs.collectives").joinpath("curves.csv").read_text(encoding="utf-8")
    return tuple(_curve(row) for row in csv.DictReader(text.splitlines()))


def at_sizes(times_s: Sizes, sizes: Sizes) -> Sizes:
    """Times between those of a curve over `GRID`, straight in logarithms; beyond its last size time grows as size does.

    Args:
        times_s: at each size of `GRID` [s]
        sizes: wanted, none of them 0 [bytes]

    Returns:
        Time at each size [s].
    """
    inside = np.interp(np.log(sizes), np.log(GRID), np.log(times_s))
    beyond = np.maximum(0.0, np.log(sizes / GRID[-1]))
    result: Sizes = np.exp(inside + beyond)
    return result


def _curve(row: dict[str, str]) -> MeasuredCurve:
    times = [row[str(power)] for power in range(FIRST_POWER, LAST_POWER + 1)]
    group = Group(
        devices=int(row["devices"]),
        nodes=int(row["nodes"]),
        kind=cast(LinkKind, row["kind"]),
        generation=float(row["generation"]),
        ring_bytes_per_s=float(row["ring_gb_s"]) * 1e9,
        exchange_bytes_per_s=float(row["exchange_gb_s"]) * 1e9,
        card_kind=cast(CardKind, row["card_kind"]),
        cards_bytes_per_s=float(row["cards_gb_s"] or 0) * 1e9,
        cards=int(row["cards"] or 0),
        node=row["node"],
        device=row["device"],
    )
    return MeasuredCurve(
        op=row["op"],
        group=group,
        timing=cast(Timing, row["timing"]),
        year=float(row["year"]),
        times_s=np.array([float(time) * 1e-6 if time else math.nan for time in times]),
        source=row["source"],
    )
