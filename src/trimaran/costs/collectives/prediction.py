"""What a collective of a group takes: physics, corrected by what was measured on groups like it.

Curves over all sizes are kept, so that one group is asked often at little cost. They never fall as messages grow.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from trimaran.costs.collectives.curves import GRID, at_sizes
from trimaran.costs.collectives.groups import Group, Timing, family
from trimaran.costs.collectives.kriging import Query, correction, field
from trimaran.costs.collectives.prior import Sizes, constants, prior_time
from trimaran.costs.types import Cost

SURE, LIKELY = 0.12, 0.5
"""Spread of the logarithm up to which an answer counts as interpolated, and as calibrated on like machines."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Predicted times over `GRID`.

    Attributes:
        seconds: at each size [s]
        spread: standard deviation of their logarithm
    """

    seconds: Sizes
    spread: Sizes


def group_cost(op: str, nbytes: float, group: Group, *, timing: Timing = "stream", year: float = 2024.0) -> Cost:
    """Time of a collective of a group, however it is joined.

    Args:
        op: as in `collective_cost`
        nbytes: as there [bytes]
        group: the devices
        timing: how the time is taken
        year: of the library

    Returns:
        Time with its 90 % interval [s].
    """
    curve = predicted_curve(op, group, timing, year)
    if nbytes == 0 and op == "all_to_all":
        # Nothing is sent, so nothing is launched: what is left is the host's walk over the ranks.
        empty = constants()["prior"]["call_empty"] * 2 * group.devices
        return Cost(empty, empty / 2, empty * 2, "calibrated: an empty exchange launches nothing")
    size = np.array([max(float(nbytes), GRID[0])])
    seconds = float(at_sizes(curve.seconds, size)[0])
    sigma = float(np.interp(math.log(size[0]), np.log(GRID), curve.spread))
    factor = half_width(sigma, group)
    return Cost(seconds, seconds / factor, seconds * factor, _source(sigma, group))


def half_width(sigma: float, group: Group) -> float:
    """Factor between a median and the ends of its 90 % interval.

    Args:
        sigma: standard deviation of the logarithm of the time, among groups like this one; what repeats of one
            measurement differ by comes on top
        group: the devices
    """
    known = constants()["intervals"]
    return math.exp(math.hypot(known[f"scale_{family(group)}"] * 1.645 * sigma, known["repeat"]))


@functools.lru_cache(maxsize=4096)
def predicted_curve(op: str, group: Group, timing: Timing, year: float) -> Curve:
    """Times over all sizes, that never fall as messages grow.

    Args:
        op: as in `collective_cost`
        group: the devices
        timing: how the time is taken
        year: of the library
    """
    known = constants()["prior"]
    factor, spread = correction(Query(op=op, group=group, timing=timing, year=year), field())
    seconds = prior_time(op, GRID, group, timing, known, year=year) * np.exp(factor)
    return Curve(seconds=np.maximum.accumulate(seconds), spread=spread)


def _source(sigma: float, group: Group) -> str:
    if sigma <= SURE:
        return f"interpolated: collectives measured on {group.node or 'like machines'}"
    if sigma <= LIKELY:
        return "calibrated: a model of the links, corrected by collectives measured on machines like it"
    return "analytic: a model of the links"
