"""Whether it is sure that the chosen exchange of gradients is the fastest one.

    chosen     step with all transfers, and all that nobody has measured of calls, at their low and at their high ends
    others     the same, the best candidate of each other exchange
    not sure   where the other one may be faster by more than the model's error, and may be slower

Compute is the same for both, so it stays at its median. Transfers of one exchange may be at their low ends while those
of the other one are at their high ones: a time of a call of one kind says nothing of another kind.
"""

from collections.abc import Sequence
from dataclasses import replace

from trimaran.base.units import format_seconds, format_span
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import MODEL_ERROR, fastest
from trimaran.planner.problem import Problem, costs_of
from trimaran.pricing.exchange.unknowns import BOTH_ENDS
from trimaran.simulator.engine import simulate


def doubts_of_exchange(chosen: Candidate, candidates: Sequence[Candidate], problem: Problem) -> tuple[str, ...]:
    """Other exchanges of gradients that may be faster than the chosen one, as notes for people.

    Args:
        chosen: of the search
        candidates: simulated in it
        problem: their job and machine
    """
    if chosen.strategy.dp == 1:
        return ()
    found = []
    ours = exchange_interval(chosen, problem)
    of_sync: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if candidate.strategy.dp > 1 and candidate.strategy.sync != chosen.strategy.sync:
            of_sync.setdefault(candidate.strategy.sync, []).append(candidate)
    for sync, others in of_sync.items():
        best = fastest(others)
        theirs = exchange_interval(best, problem)
        if theirs[0] * (1.0 + MODEL_ERROR) < ours[1] and ours[0] <= theirs[1]:
            found.append(
                f"not sure whether {chosen.strategy.sync} ({chosen.name}, {_interval(ours)} a step) or {sync} "
                f"({best.name}, {_interval(theirs)}) is faster: that depends on times of calls and transfers that are "
                "known between these ends only"
            )
    return tuple(found)


def exchange_interval(candidate: Candidate, problem: Problem) -> tuple[float, float]:
    """The step of a candidate with all its transfers at their low and at their high ends [s, s].

    Args:
        candidate: simulated
        problem: its job and machine
    """
    step_s = []
    for unknowns, end in BOTH_ENDS:
        costs = costs_of(candidate, problem, end=unknowns)
        transfers = {name: transfer.at(end) for name, transfer in costs.transfers.items()}
        step_s.append(simulate(candidate.program, replace(costs, transfers=transfers)).makespan_s)
    return min(step_s), max(step_s)


def _interval(ends: tuple[float, float]) -> str:
    return format_span(*map(format_seconds, ends))
