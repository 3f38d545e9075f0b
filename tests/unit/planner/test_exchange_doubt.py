"""Whether it is sure which exchange of gradients is faster."""

import dataclasses

from tests import builders
from tests.builders import problem

from trimaran.planner.candidates import Candidate
from trimaran.planner.explanation.exchange_doubt import doubts_of_exchange, exchange_interval
from trimaran.planner.problem import Problem, assess
from trimaran.pricing.types import Cost


def candidate(given: Problem, sync: str) -> Candidate:
    found = assess(builders.strategy(dp=2, sync=sync), given)
    assert isinstance(found, Candidate)
    return found


def widened(given: Problem, share: float) -> Problem:
    """The same problem with transfers that are known within a share of them."""

    def wider(cost: Cost) -> Cost:
        return dataclasses.replace(cost, low=cost.seconds * (1 - share), high=cost.seconds * (1 + share))

    curves = {key: tuple((size, wider(cost)) for size, cost in curve) for key, curve in given.table.curves.items()}
    return dataclasses.replace(given, table=dataclasses.replace(given.table, curves=curves))


def test_exact_transfers_leave_no_doubt() -> None:
    given = widened(problem(), 0.0)
    chosen, other = candidate(given, "all-reduce"), candidate(given, "p2p")
    low, high = exchange_interval(chosen, given)
    assert low == high == chosen.step_time_s
    assert doubts_of_exchange(chosen, [chosen, other], given) == ()


def test_vague_transfers_are_said() -> None:
    given = widened(problem(), 0.9)
    chosen, other = candidate(given, "all-reduce"), candidate(given, "p2p")
    (note,) = doubts_of_exchange(chosen, [chosen, other], given)
    assert note.startswith("not sure whether all-reduce (dp2, ")
    low, high = exchange_interval(chosen, given)
    assert low < chosen.step_time_s < high


def test_one_replica_exchanges_nothing() -> None:
    given = problem()
    alone = assess(builders.strategy(), given)
    assert isinstance(alone, Candidate)
    assert doubts_of_exchange(alone, [alone], given) == ()
