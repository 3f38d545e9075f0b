"""What each pin costs: the plan with all of them against the plan without that one."""

from dataclasses import dataclass, replace

from trimaran.errors import InfeasibleError
from trimaran.planner.candidates import Candidate
from trimaran.planner.found import Search
from trimaran.planner.pins import NO_PINS
from trimaran.planner.problem import Problem
from trimaran.planner.search import search
from trimaran.planner.trials import Trials

ALL_PINS = "all pins"
"""Name of the price of all of them together, where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPrice:
    """What a pin costs.

    Attributes:
        pin: as it is written on the command line
        without: what would be chosen without it; None: nothing fits
        price: how much longer the plan takes because of it, as a share of `without`; 0 without one
        to_target: the price counts the samples to the target, of which one of the two plans needs more
    """

    pin: str
    without: Candidate | None
    price: float
    to_target: bool = False


def prices(problem: Problem, found: Search, trials: Trials) -> tuple[PinPrice, ...]:
    """The price of each pin of a problem, and of all of them.

    Args:
        problem: with pins
        found: the search with all of them
        trials: what that search simulated
    """
    pins = problem.pins
    answers = [_price(name, replace(problem, pins=pins.without(name)), found, trials) for name in pins.names]
    if len(answers) > 1:
        answers.append(_price(ALL_PINS, replace(problem, pins=NO_PINS), found, trials))
    return tuple(answers)


def _price(name: str, freer: Problem, found: Search, trials: Trials) -> PinPrice:
    try:
        without = search(freer, trials).chosen
    except InfeasibleError:
        return PinPrice(pin=name, without=None, price=0.0)
    return PinPrice(
        pin=name,
        without=without,
        price=found.chosen.objective_s / without.objective_s - 1.0,
        to_target=found.chosen.samples_factor != without.samples_factor,
    )
