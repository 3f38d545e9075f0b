"""What a user's own nccl-tests run says of a machine, put before every prediction for it.

The run's times over the predicted ones give a factor for each size. It holds for the operation and the number of
devices that were run; for others the nearest run lends its factor, since a link that is slower than expected is slow
for every operation, and the interval stays wider.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.cluster.machines import Machine
from trimaran.costs.collectives.boxes import as_measured
from trimaran.costs.collectives.curves import GRID, at_sizes
from trimaran.costs.collectives.nccl_logs import NcclLog
from trimaran.costs.collectives.prediction import predicted_curve
from trimaran.costs.collectives.prior import Sizes
from trimaran.costs.collectives.wires import group_of
from trimaran.costs.types import Cost
from trimaran.errors import InputError

SAME_RUN, LENT = 0.05, 0.15
"""Half-width of the interval, in logarithms: of what was run, and what is added for what was not."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """Measured over predicted, of one run.

    Attributes:
        op: the operation
        devices: ranks
        nodes: hosts
        sizes: [bytes]
        ratios: logarithm of measured over predicted
        path: of the log
    """

    op: str
    devices: int
    nodes: int
    sizes: Sizes
    ratios: Sizes
    path: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """Factors of a user's runs on a machine."""

    factors: tuple[Factor, ...]

    def apply(self, cost: Cost, op: str, nbytes: float, *, devices: int, nodes: int) -> Cost:
        """A predicted cost as the runs have it.

        Args:
            cost: predicted
            op: the operation
            nbytes: the whole buffer [bytes]
            devices: in the group
            nodes: in use
        """
        near = min(self.factors, key=lambda one: _distance(one, op, devices, nodes))
        ratio = math.exp(float(np.interp(math.log(max(nbytes, 1.0)), np.log(near.sizes), near.ratios)))
        seconds = cost.seconds * ratio
        if _distance(near, op, devices, nodes) == 0:
            width, how = SAME_RUN, "measured"
        else:
            width, how = min(LENT + SAME_RUN, math.log(cost.high / cost.seconds)), "calibrated"
        return Cost(
            seconds, seconds * math.exp(-width), seconds * math.exp(width), f"{how}: nccl-tests log {near.path}"
        )


def corrected_by(logs: Sequence[NcclLog], *, machine: Machine, year: float = 2024.0) -> Correction:
    """What logs of runs on a machine say of it.

    Args:
        logs: at least one
        machine: that they were taken on
        year: of the library

    Returns:
        For `collective_cost(..., correction=...)`.

    Raises:
        InputError: no log, or one of more devices than the machine has
    """
    if not logs:
        raise InputError("a correction needs at least one nccl-tests log, got none")
    return Correction(factors=tuple(_factor(log, machine, year) for log in logs))


def _factor(log: NcclLog, machine: Machine, year: float) -> Factor:
    try:
        group = as_measured(group_of(machine, log.devices, log.nodes))
    except InputError as error:
        raise InputError(
            f"{log.path}: {error.message}", code="nccl-log.other-machine", path=log.path, devices=log.devices
        ) from error
    sizes = np.array(sorted({max(size, GRID[0]) for size, _ in log.points}))
    measured = np.array([np.median([t for size, t in log.points if max(size, GRID[0]) == wanted]) for wanted in sizes])
    predicted = at_sizes(predicted_curve(log.op, group, log.timing, year).seconds, sizes)
    return Factor(
        op=log.op,
        devices=log.devices,
        nodes=log.nodes,
        sizes=sizes,
        ratios=np.log(measured / predicted),
        path=log.path,
    )


def _distance(factor: Factor, op: str, devices: int, nodes: int) -> float:
    """How far a run is from what is asked."""
    spread = abs(math.log2(factor.devices / devices)) + 2 * abs(math.log2(factor.nodes / nodes))
    return spread + (0.0 if factor.op == op else 0.5)
