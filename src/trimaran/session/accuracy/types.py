"""What was found of a training to a target."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimaran.cluster.prices import Price
from trimaran.planner.accuracy.stopping import Stop
from trimaran.planner.accuracy.types import Estimate, Goal, Rivals

if TYPE_CHECKING:
    from trimaran.costs.convergence.curve import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A choice of strategy, batch and devices, and what it was chosen from.

    Attributes:
        asked: what was to be made best
        goal: what was: throughput, where there is no curve
        curve: by which; None: there is none
        curve_name: as it was asked for
        estimates: all that were compared
        chosen: one of them
        front: not beaten in time and cost, fastest first
        rivals: the best hybrid against the best data parallelism
        stop: where more devices no longer help; None without a curve, or for a single count
        batches: that were looked at
        left_out: batches that were not, with the reason
        price: of devices; None: nobody says
        is_complete: the time of the search did not run out
        warnings: what the user should know
    """

    asked: Goal
    goal: Goal
    curve: "Curve | None"
    curve_name: str
    estimates: tuple[Estimate, ...]
    chosen: Estimate
    front: tuple[Estimate, ...]
    rivals: Rivals
    stop: Stop | None
    batches: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...] = ()
    price: Price | None = None
    is_complete: bool = True
    warnings: tuple[str, ...] = ()
