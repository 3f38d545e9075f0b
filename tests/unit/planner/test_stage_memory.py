"""Stages cut for the memory of their devices, against all cuts."""

import itertools

import pytest
from tests import builders
from tests.builders import network, table_for
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.planner.pipeline_stages import StageMemory, in_flight, split_stages, split_within
from trimaran.program.lowering.schedules import order_of
from trimaran.program.strategy import Strategy

GRAPH = network(6)
TABLE = table_for(GRAPH)


def memory(strategy: Strategy, limit: float) -> StageMemory:
    return StageMemory(
        graph=GRAPH,
        microbatch=16 // strategy.microbatches,
        state_bytes_per_byte=1.0,
        in_flight=in_flight(order_of(strategy)),
        limits=(limit,) * strategy.pp,
    )


def test_early_stages_of_1f1b_have_more_in_flight() -> None:
    assert in_flight(order_of(builders.strategy(pp=4, schedule="1f1b", microbatches=8))) == (4, 3, 2, 1)
    assert in_flight(order_of(builders.strategy(pp=2, schedule="gpipe", microbatches=8))) == (8, 8)


def test_a_stage_holds_its_state_and_what_is_in_flight() -> None:
    """Layer 0 of 48 bytes: 3 · 48 of state; 2 samples keep and send 8 bytes each of 2 in flight: 144 + 16 + 16 + 16."""
    held = memory(builders.strategy(pp=2, schedule="1f1b", microbatches=8), 1e9)
    assert held.need(0, 0, 1) - held.need(1, 0, 1) == pytest.approx(held.runs.look(0, 1)[1])
    assert held.runs.look(0, 1)[0] == 3 * 48


@pytest.mark.parametrize("limit", [900, 1000, 1100, 1300, 2000])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_cut_is_the_best_of_all_that_fit(limit: float, schedule: str) -> None:
    strategy = builders.strategy(pp=3, schedule=schedule, microbatches=4)  # type: ignore[arg-type]
    held = memory(strategy, limit)
    ms = [1, 2, 3, 4, 5, 6, 1]

    def fits(places: tuple[int, ...]) -> bool:
        ends = [0, *places, 7]
        return all(held.need(stage, a, b) <= limit for stage, (a, b) in enumerate(itertools.pairwise(ends)))

    def largest(places: tuple[int, ...]) -> int:
        return max(sum(ms[a:b]) for a, b in itertools.pairwise([0, *places, 7]))

    fitting = [places for places in itertools.combinations(range(1, 6), 2) if fits(places)]
    if not fitting:
        with raises("plan.no-split-fits", InfeasibleError, stages=3):
            split_within(strategy, GRAPH, TABLE, batch=16, memory_bytes=limit)
        return
    found = split_within(strategy, GRAPH, TABLE, batch=16, memory_bytes=limit)
    ends = tuple(int(name.removeprefix("op")) + 1 for name in found.boundaries)
    assert ends in fitting
    assert largest(ends) == min(map(largest, fitting))


def test_with_memory_enough_the_cut_is_that_of_time() -> None:
    strategy = builders.strategy(pp=3, schedule="1f1b", microbatches=4)
    assert split_within(strategy, GRAPH, TABLE, batch=16, memory_bytes=1e9) == split_stages(
        strategy, GRAPH, TABLE, batch=16
    )


def test_several_segments_a_stage_are_cut_too() -> None:
    strategy = builders.strategy(pp=2, chunks=2, schedule="interleaved", microbatches=4)
    assert len(split_stages(strategy, GRAPH, TABLE, batch=16).boundaries) == 3
