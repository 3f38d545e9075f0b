"""Measured curves of collectives, thinned to powers of two.

`curves.csv` has a line for each machine, operation and number of devices: what the group is, how the time was taken,
and the time at 4 B, 8 B, … 16 GiB in microseconds, empty where not measured. `benchmarks/fits/collectives.py` makes
it. Sizes count as in `formulas`.

The node that a card without NVLink is assumed to be in, where the source does not say.

The rate of such cards together depends more on their box than on the cards: whether they may access each other, through
which switches and sockets. Where the machine is only "eight of this card", the box in which collectives of this card
were measured stands in; it is a real one.
"""

import csv
import functools
import math
import re
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from trimaran.base.files import packaged_text
from trimaran.pricing.collectives.groups import OVER_PCIE, CardKind, Group, LinkKind, Timing
from trimaran.pricing.collectives.physics import Sizes

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
        times_s: at each size of `GRID`; NaN where not measured [s]
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
    text = packaged_text("trimaran.pricing.collectives", "curves.csv")
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


_PLAIN = re.compile(r"\d+x")


def as_measured(group: Group) -> Group:
    """The same devices in the box where their like was measured; the group itself where there is none, or no need.

    Args:
        group: the devices

    Returns:
        With kind, rates and name of the measured box that has the nearest number of devices.
    """
    if group.kind not in OVER_PCIE or not _PLAIN.match(group.node):
        return group
    boxes = _boxes(group.device)
    if not boxes or group.node in {box.node for box in boxes}:
        boxes = tuple(box for box in boxes if box.node == group.node)
    if not boxes:
        return group
    box = min(boxes, key=lambda one: abs(one.devices - group.per_node))
    return replace(
        group,
        kind=box.kind,
        generation=box.generation,
        ring_bytes_per_s=box.ring_bytes_per_s,
        exchange_bytes_per_s=box.exchange_bytes_per_s,
        node=box.node,
    )


@functools.cache
def _boxes(device: str) -> tuple[Group, ...]:
    """Measured groups of one node, of this device and without NVLink, each once."""
    groups = {curve.group for curve in measured_curves() if curve.group.device == device and curve.group.nodes == 1}
    return tuple(sorted((one for one in groups if one.kind in OVER_PCIE), key=lambda one: (one.devices, one.node)))
