"""Find the strategy that is best and fits.

    minimise    simulated time of a step of strategy s, or of an epoch with its evaluation
    subject to  s.dp · s.pp ≤ devices;  s.dp · s.microbatches divides the batch;  stages cut at legal places;
                live bytes of every rank ≤ memory of its device, at every moment of the simulated step

The space is enumerated (`space.py`), the stages of each strategy are cut (`partition.py`), and each gets a lower bound
of its time and memory (`bounds.py`). Strategies are simulated in the order of their bounds:

    1. until no bound is below the best simulated time: now the fastest is known;
    2. of the rest, those that the uncertainty may leave as fast as it, those that may use less memory than all that are
       faster, the best of each family, and what people do without a plan.

What is left out is slower than the fastest by more than the uncertainty and not on the front of time and memory, so
the choice and the front are those of a search that simulates everything. A strategy that is believed faster only within
the uncertainty of the costs loses to a simpler one (`choice.py`).

A whole network that memory alone stands against is tried once more in the memory that there is, with a plan of what is
kept, offloaded and recomputed (`virtual.py`), where its step was traced.

Left out so far: placements that are not chains, sharded tensors, memory plans of pipeline stages.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from trimaran.errors import InfeasibleError
from trimaran.planner.bounds import Bound
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import (
    choose,
    fastest,
    is_plain,
    is_reference,
    largest_peak,
    may_be_as_fast,
    pareto_front,
    simplicity,
)
from trimaran.planner.problem import Problem, assess_cut, cut_for, lack_of_memory, least
from trimaran.planner.space import Rejection, enumerate_strategies
from trimaran.program import Strategy
from trimaran.units import format_seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search found.

    Attributes:
        candidates: those that were simulated and fit, best first
        chosen: the one to run
        baseline: plain data parallelism on all devices, or what comes nearest
        rejected: what was not simulated or does not fit
        references: what people do without a plan, as far as it fits: plain data parallelism, one device, data
            parallelism with a smaller local batch; the baseline is among them
        pareto: those that no other one beats in both the time of a step and the largest peak of memory
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    baseline: Candidate
    rejected: tuple[Rejection, ...]
    references: tuple[Candidate, ...] = ()
    pareto: tuple[Candidate, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Prospect:
    """A strategy that may fit, with its lower bounds."""

    strategy: Strategy
    bound: Bound


def search(problem: Problem) -> Search:
    """Find the strategy with the shortest step, or epoch, that fits.

    Args:
        problem: the job, its costs and its devices

    Returns:
        The candidates, the chosen one among them. The same problem gives the same result.

    Raises:
        InfeasibleError: nothing fits, with what the nearest one needs
    """
    strategies, rejected = enumerate_strategies(
        problem.graph, devices=problem.devices, batch=problem.batch, executions=problem.executions
    )
    prospects = _prospects(strategies, problem, rejected)
    candidates: list[Candidate] = []
    left = _find_fastest(prospects, problem, candidates, rejected)
    ruled_out = _fill_up(left, problem, candidates, rejected) if candidates else []
    candidates += _virtualized(problem, rejected)
    if not candidates:
        raise _nothing_fits(problem, rejected)
    candidates.sort(key=lambda candidate: (candidate.objective_s, simplicity(candidate.strategy)))
    chosen = choose(candidates)
    rejected += [_too_slow(prospect, chosen) for prospect in ruled_out]
    baseline = _baseline(candidates)
    return Search(
        candidates=tuple(candidates),
        chosen=chosen,
        baseline=baseline,
        rejected=tuple(sorted(rejected, key=lambda rejection: simplicity(rejection.strategy))),
        references=tuple(
            candidate
            for candidate in candidates
            if candidate is baseline or is_reference(candidate.strategy, devices=problem.devices)
        ),
        pareto=pareto_front(candidates),
    )


def _prospects(strategies: Iterable[Strategy], problem: Problem, rejected: list[Rejection]) -> list[_Prospect]:
    """The strategies that may fit, by their bounds; the others are added to `rejected`."""
    found = []
    for uncut in strategies:
        try:
            strategy = cut_for(uncut, problem)
        except InfeasibleError as error:
            rejected.append(Rejection(strategy=uncut, cause="cut", reason=error.message))
            continue
        lower = least(strategy, problem)
        reason = lack_of_memory(lower.peak_bytes, problem, at_least=True)
        if reason:
            rejected.append(_too_large(strategy, lower.peak_bytes, reason))
        else:
            found.append(_Prospect(strategy=strategy, bound=lower))
    return sorted(found, key=lambda prospect: (prospect.bound.objective_s, simplicity(prospect.strategy)))


def _find_fastest(
    prospects: Sequence[_Prospect], problem: Problem, candidates: list[Candidate], rejected: list[Rejection]
) -> list[_Prospect]:
    """Simulate until no bound is below the best time; returns what is left."""
    for position, prospect in enumerate(prospects):
        if candidates and prospect.bound.objective_s > fastest(candidates).objective_s:
            return list(prospects[position:])
        _simulate(prospect, problem, candidates, rejected)
    return []


def _fill_up(
    left: Iterable[_Prospect], problem: Problem, candidates: list[Candidate], rejected: list[Rejection]
) -> list[_Prospect]:
    """Simulate what the fastest does not rule out; returns the rest."""
    best = fastest(candidates)
    ruled_out = []
    for prospect in left:
        if (
            is_reference(prospect.strategy, devices=problem.devices)
            or may_be_as_fast(prospect.bound.cases, best.cases)
            or not any(_beats(candidate, prospect.bound) for candidate in candidates)
            or all(_family(candidate.strategy) != _family(prospect.strategy) for candidate in candidates)
        ):
            _simulate(prospect, problem, candidates, rejected)
        else:
            ruled_out.append(prospect)
    return ruled_out


def _too_slow(prospect: _Prospect, chosen: Candidate) -> Rejection:
    what = "a step" if chosen.epoch_s is None else "an epoch"
    reason = (
        f"takes at least {format_seconds(prospect.bound.objective_s)} {what}, "
        f"{chosen.strategy.name} takes {format_seconds(chosen.objective_s)}"
    )
    return Rejection(strategy=prospect.strategy, cause="bound", reason=reason)


def _beats(candidate: Candidate, lower: Bound) -> bool:
    """Whether a candidate needs less time and memory than another one can possibly do with."""
    return candidate.step_time_s < lower.step_time_s and largest_peak(candidate) <= max(lower.peak_bytes, default=0)


def _simulate(prospect: _Prospect, problem: Problem, candidates: list[Candidate], rejected: list[Rejection]) -> None:
    candidate = assess_cut(prospect.strategy, problem)
    reason = lack_of_memory(candidate.peak_bytes, problem)
    if reason:
        rejected.append(_too_large(prospect.strategy, candidate.peak_bytes, reason))
    else:
        candidates.append(candidate)


def _virtualized(problem: Problem, rejected: list[Rejection]) -> list[Candidate]:
    """Whole networks that memory alone stands against, made to fit by offloading and recomputing.

    What cannot be made to fit is added to `rejected`.
    """
    found = []
    for plain in [rejection.strategy for rejection in rejected if may_be_virtualized(rejection)]:
        if problem.batch // (plain.dp * plain.microbatches) not in problem.traces:
            continue
        memory_bytes = min(device.memory_bytes for device in problem.cluster.devices[: plain.devices])
        strategy = dataclasses.replace(plain, memory_bytes=memory_bytes)
        try:
            found.append(assess_cut(strategy, problem))
        except InfeasibleError as error:
            rejected.append(Rejection(strategy=strategy, cause="memory", reason=error.message))
    return found


def may_be_virtualized(rejection: Rejection) -> bool:
    """Whether only memory stands against a strategy that a memory budget can be put on."""
    strategy = rejection.strategy
    whole = strategy.pp == 1 and strategy.execution == "eager" and strategy.memory_bytes is None
    return whole and rejection.cause == "memory"


def _family(strategy: Strategy) -> tuple[bool, bool, str]:
    return strategy.dp > 1, strategy.pp > 1, strategy.execution


def _baseline(candidates: Sequence[Candidate]) -> Candidate:
    """Plain data parallelism on as many devices as fit; else replicas in any way; else whatever there is."""
    plain = [candidate for candidate in candidates if is_plain(candidate.strategy)]
    replicas = [candidate for candidate in candidates if candidate.strategy.pp == 1]
    return min(
        plain or replicas or candidates,
        key=lambda candidate: (-candidate.strategy.dp, simplicity(candidate.strategy)),
    )


def _too_large(strategy: Strategy, peak_bytes: tuple[int, ...], reason: str) -> Rejection:
    return Rejection(strategy=strategy, cause="memory", reason=reason, peak_bytes=peak_bytes)


def _nothing_fits(problem: Problem, rejected: Sequence[Rejection]) -> InfeasibleError:
    sized = [rejection for rejection in rejected if rejection.peak_bytes]
    # Without any that was sized, what stands against the simplest one is what to look at.
    nearest = min(
        sized, key=lambda rejection: (max(rejection.peak_bytes), simplicity(rejection.strategy)), default=None
    )
    named = nearest or min(rejected, key=lambda rejection: simplicity(rejection.strategy))
    return InfeasibleError(
        f"no strategy fits {problem.graph.name} on {problem.devices} devices. "
        f"The nearest of {len(rejected)} is {named.strategy.name}: {named.reason}",
        devices=problem.devices,
    )
