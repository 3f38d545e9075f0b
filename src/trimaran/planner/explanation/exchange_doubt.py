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
from trimaran.pricing.exchange.unknowns import End
from trimaran.pricing.types import ProgramCosts, Transfer
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
    fast, slow = (_at(costs_of(candidate, problem, end=end), end) for end in _BOTH)
    low, high = (simulate(candidate.program, costs).makespan_s for costs in (fast, slow))
    return min(low, high), max(low, high)


_BOTH: tuple[End, End] = ("fast", "slow")


def _at(costs: ProgramCosts, end: End) -> ProgramCosts:
    """Costs whose transfers are at an end of their intervals."""

    def moved(transfer: Transfer) -> Transfer:
        seconds = transfer.latency_s + transfer.flow_s
        factor = (transfer.low if end == "fast" else transfer.high) / seconds if seconds else 1.0
        return replace(transfer, latency_s=transfer.latency_s * factor, flow_s=transfer.flow_s * factor)

    return replace(costs, transfers={name: moved(transfer) for name, transfer in costs.transfers.items()})


def _interval(ends: tuple[float, float]) -> str:
    return format_span(*map(format_seconds, ends))
