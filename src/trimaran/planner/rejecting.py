"""Why a search left something out, in words: its bound, its turn that never came, or that nothing fits at all."""

from collections.abc import Sequence

from trimaran.errors import InfeasibleError
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import simplicity
from trimaran.planner.problem import Problem
from trimaran.planner.space import Rejection
from trimaran.planner.trials import Prospect
from trimaran.units import format_count, format_seconds


def too_slow(prospect: Prospect, chosen: Candidate) -> Rejection:
    """The rejection of a strategy that was not simulated.

    Args:
        prospect: with its bound
        chosen: what was chosen instead
    """
    what = "a step" if chosen.epoch_s is None else "an epoch"
    if prospect.bound.objective_s < chosen.objective_s:
        reason = (
            f"takes at least {format_seconds(prospect.bound.objective_s)} {what}: the search was over before its turn"
        )
        return Rejection(strategy=prospect.strategy, cause="time", reason=reason)
    reason = (
        f"takes at least {format_seconds(prospect.bound.objective_s)} {what}, "
        f"{chosen.strategy.name} takes {format_seconds(chosen.time_s)}"
    )
    return Rejection(strategy=prospect.strategy, cause="bound", reason=reason)


def nothing_fits(problem: Problem, rejected: Sequence[Rejection]) -> InfeasibleError:
    """The error where nothing fits, with what the nearest strategy needs.

    Args:
        problem: that was searched
        rejected: all that was considered
    """
    conflict = problem.pins.conflict(problem.devices)
    if conflict or not rejected:
        pins = " ".join(problem.pins.names) or "what was asked"
        why = conflict or "its network cannot be spread so, or there are too few devices"
        return InfeasibleError(
            f"{problem.graph.name} has no strategy on {format_count(problem.devices, 'device')} that keeps {pins}: "
            f"{why}",
            devices=problem.devices,
        )
    sized = [rejection for rejection in rejected if rejection.peak_bytes]
    # Without any that was sized, what stands against the simplest one is what to look at.
    nearest = min(
        sized, key=lambda rejection: (max(rejection.peak_bytes), simplicity(rejection.strategy)), default=None
    )
    named = nearest or min(rejected, key=lambda rejection: simplicity(rejection.strategy))
    return InfeasibleError(
        f"no strategy fits {problem.graph.name} on {format_count(problem.devices, 'device')}. "
        f"The nearest of {len(rejected)} is {named.strategy.name}: {named.reason}"
        + _kept_whole(named)
        + _undivided(problem, rejected, named),
        code="plan.nothing-fits",
        devices=problem.devices,
    )


def _kept_whole(named: Rejection) -> str:
    """That nothing makes parts of a network fit, where memory is what stands against them."""
    if named.cause != "memory" or named.strategy.pp * named.strategy.tp == 1:
        return ""
    return (
        ". Parts of a network have no memory plan, so nothing is offloaded or recomputed there; a whole network on "
        "each device (pp=1, tp=1) may have one"
    )


def _undivided(problem: Problem, rejected: Sequence[Rejection], named: Rejection) -> str:
    """What the batch alone stands in the way of, where that is not what was named."""
    undivided = [one for one in rejected if one.cause == "batch"]
    if not undivided or named.cause == "batch":
        return ""
    first = min(undivided, key=lambda one: (one.strategy.devices < problem.devices, simplicity(one.strategy)))
    return (
        f". {len(undivided)} cannot divide the batch, such as {first.strategy.name}: {first.reason}; "
        "with another batch they may fit"
    )
