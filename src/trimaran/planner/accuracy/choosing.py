"""Which estimate to take, which are on the front of time against cost, and whether a hybrid is worth it."""

import math
from collections.abc import Sequence

from trimaran.planner.accuracy.types import Estimate, Goal, Rivals
from trimaran.planner.choice import MODEL_ERROR
from trimaran.units import format_duration


def choose_estimate(estimates: Sequence[Estimate], goal: Goal) -> Estimate:
    """The best, unless what makes it better than a simpler or smaller one is within the uncertainty.

    Of strategies of the same kind on as many devices the best median is taken.

    Args:
        estimates: at least one
        goal: what is made best
    """
    best = min(estimates, key=lambda one: (one.value(goal), one.contender.simplicity, one.global_batch))
    # Of one batch the curve says the same, whatever it says: there its uncertainty excuses nothing.
    leaders = {batch: min(of, key=lambda one: one.value(goal)) for batch, of in _by_batch(estimates).items()}
    close = [
        one
        for one in estimates
        if one is best or (is_tied(one, best, goal) and is_tied(one, leaders[one.global_batch], goal))
    ]
    least = min((_kind(one), one.devices) for one in close)
    alike = [one for one in close if (_kind(one), one.devices) == least]
    near = min(one.value(goal) for one in alike) * (1.0 + MODEL_ERROR)
    equal = [one for one in alike if one.value(goal) <= near]
    return min(equal, key=lambda one: (one.contender.simplicity, one.value(goal), one.global_batch))


def _by_batch(estimates: Sequence[Estimate]) -> dict[int, list[Estimate]]:
    found: dict[int, list[Estimate]] = {}
    for one in estimates:
        found.setdefault(one.global_batch, []).append(one)
    return found


def is_tied(one: Estimate, best: Estimate, goal: Goal) -> bool:
    """Whether the uncertainty leaves room for an estimate to be as good as the best.

    Steps of one machine err together, so they are compared where all costs are low, at their median, and high. What
    curves say of two batches errs apart: the distance may be as large as their two intervals in quadrature.

    Args:
        one: any
        best: with the smallest value
        goal: what is made best
    """
    value, least = one.value(goal), best.value(goal)
    ratio = value / least / one.contender.cases[1] * best.contender.cases[1]
    steps = min(mine / theirs for mine, theirs in zip(one.contender.cases, best.contender.cases, strict=True))
    return steps * ratio <= (1.0 + MODEL_ERROR) * math.exp(_curve_slack(one, best, goal))


def _curve_slack(one: Estimate, best: Estimate, goal: Goal) -> float:
    """How far the curve may be wrong about the ratio of two batches, in logarithms."""
    same = one.global_batch == best.global_batch
    if same or goal == "throughput" or one.training is None or best.training is None:
        return 0.0
    mine, theirs = one.training.updates, best.training.updates
    return math.hypot(_log(mine.amount, mine.low), _log(theirs.high, theirs.amount))


def _log(larger: float, smaller: float) -> float:
    return math.log(larger / smaller) if larger > smaller > 0.0 else 0.0


def _kind(estimate: Estimate) -> int:
    """One device, replicas, one network on several devices, hybrids: the first figure of a strategy's simplicity."""
    return estimate.contender.simplicity[0]


def time_cost_front(estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Those that no other one beats in both time and cost, fastest first.

    Args:
        estimates: with a time; those without are left out
    """
    timed = [one for one in estimates if one.time_s is not None and one.cost is not None]
    front: list[Estimate] = []
    for one in sorted(timed, key=lambda each: (each.time_s, each.cost, each.contender.simplicity)):
        if not front or one.value("cost") < front[-1].value("cost"):
            front.append(one)
    return tuple(front)


def hybrid_verdict(estimates: Sequence[Estimate], goal: Goal, *, is_complete: bool = True) -> Rivals:
    """The best hybrid against the best data parallelism.

    Args:
        estimates: all
        goal: what is made best
        is_complete: all that may be better was looked at
    """

    def best_of(*, hybrid: bool) -> Estimate | None:
        members = [one for one in estimates if one.contender.is_hybrid is hybrid]
        return min(members, key=lambda one: (one.value(goal), one.contender.simplicity), default=None)

    plain, hybrid = best_of(hybrid=False), best_of(hybrid=True)
    if hybrid is None:
        lacking = "no strategy that spreads a network over devices"
        reason = "fits and can be better" if is_complete else "was simulated before the time of the search ran out"
        return Rivals(data_parallel=plain, hybrid=None, reason=f"{lacking} {reason}")
    if plain is None:
        return Rivals(data_parallel=None, hybrid=hybrid, reason="no data parallelism fits")
    name, other = _named(plain), _named(hybrid)
    if hybrid.value(goal) >= plain.value(goal):
        reason = f"{name} beats the best hybrid, {other}"
    elif is_tied(plain, hybrid, goal):
        reason = f"{other} beats the best data parallelism, {name}, only within the uncertainty"
    else:
        reason = f"{other} beats the best data parallelism, {name}"
    return Rivals(data_parallel=plain, hybrid=hybrid, reason=reason)


def _named(one: Estimate) -> str:
    took = "" if one.time_s is None else f" ({format_duration(one.time_s)})"
    return f"{one.contender.name} at batch {one.global_batch}{took}"
