"""Why a transformer on many devices is divided as it is: closed forms, so there is no program and no critical path."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trimaran.errors import InfeasibleError, InputError
from trimaran.planner.divisions.contrast import Contrast, read_kind
from trimaran.planner.divisions.contrast import why_not as contrast
from trimaran.planner.divisions.search import search_task
from trimaran.planner.divisions.types import PricedDivision
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.prices import ALL_PINS
from trimaran.session.cluster_planning.divided import DividedPlan, division_pins
from trimaran.session.cluster_planning.planning import plan_on_machine
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.planned import Progress, ignore_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionPrice:
    """What a pin costs.

    Attributes:
        pin: as it is written on the command line
        without: what would be chosen without it; None: nothing fits
        price: how much longer the plan takes because of it, as a share of `without`; 0 without one
    """

    pin: str
    without: PricedDivision | None
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedDivision:
    """A division with its explanation.

    Attributes:
        plan: the division, what it was chosen over, and what the reader should know
        contrasts: an answer for each kind that was asked about
        prices: what each pin costs
    """

    plan: DividedPlan
    contrasts: tuple[Contrast, ...]
    prices: tuple[DivisionPrice, ...]


def explain_division(
    reference: str,
    request: ClusterRequest,
    *,
    why_not: Sequence[str] = (),
    what_if: Sequence[str] = (),
    progress: Progress = ignore_progress,
) -> ExplainedDivision:
    """Explain the degrees of a transformer on many devices.

    Args:
        reference: of a decoder that is planned by closed forms
        request: what the plan is to look for
        why_not: kinds of divisions to compare with
        what_if: changes to try, which are refused: another question answers them
        progress: told what is being done

    Raises:
        InputError: a kind that does not exist, a change, pins that mean nothing here, no such machine
        InfeasibleError: nothing fits
    """
    if what_if:
        raise InputError(
            f"--what-if {what_if[0]}: {reference} on {request.cluster} is planned by closed forms, which are asked "
            "again instead: with other --memory, --devices, --batch or another --cluster",
            code="explain.division-what-if",
            what_if=what_if[0],
        )
    kinds = [read_kind(name) for name in why_not]
    plan = plan_on_machine(reference, request, progress=progress)
    if not isinstance(plan, DividedPlan):
        raise InputError(f"{reference} on {request.cluster} is not planned by closed forms", reference=reference)
    progress("pricing what could be otherwise", 0, 0)
    limit = {} if request.time_limit_s is None else {"time_limit_s": request.time_limit_s}
    return ExplainedDivision(
        plan=plan,
        contrasts=tuple(contrast(plan.search, kind, **limit) for kind in kinds),
        prices=tuple(_prices(plan)),
    )


def _prices(plan: DividedPlan) -> Iterator[DivisionPrice]:
    pins = plan.request.pins
    for name in pins.names:
        yield _price(name, pins.without(name), plan)
    if len(pins.names) > 1:
        yield _price(ALL_PINS, NO_PINS, plan)


def _price(name: str, pins: Pins, plan: DividedPlan) -> DivisionPrice:
    task = replace(plan.search.task, pins=division_pins(pins))
    limit = {} if plan.request.time_limit_s is None else {"time_limit_s": plan.request.time_limit_s}
    try:
        without = search_task(task, **limit).chosen
    except InfeasibleError:
        return DivisionPrice(pin=name, without=None, price=0.0)
    # A plan for a target may be another than the fastest of its search, which is no price of a pin.
    fastest = min((plan.search.chosen, *plan.search.pareto), key=lambda one: one.seconds)
    return DivisionPrice(pin=name, without=without, price=fastest.seconds / without.seconds - 1.0)
