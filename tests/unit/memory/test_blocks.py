"""Plans in blocks: what the allocator gives back in a step, and plans in less that give nothing back."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.memory.test_search import costs
from tests.unit.memory.traces import chain

from trimaran.base.errors import InfeasibleError
from trimaran.graph.trace.types import StepTrace
from trimaran.memory.blocks import RETURN_S, AllocatorRoom, fit_blocks, plan_blocks
from trimaran.memory.search import MemoryOutcome, plan_memory
from trimaran.program.memory import KEEP_ALL
from trimaran.simulator.allocator import MIB, Settings
from trimaran.simulator.memory import live_bytes

GROWING = Settings.parse("expandable_segments:True")
HALVING = (256, 256, 128, 128, 64, 64, 32, 32)
"""Of maps in a network that halves its images again and again [MiB]."""


def halving() -> StepTrace:
    return chain([size * MIB for size in (*HALVING, 16)], [1.0] * len(HALVING))


def planned(trace: StepTrace, budget_bytes: int) -> MemoryOutcome:
    return plan_memory(trace, costs(trace, 100.0 * MIB), budget_bytes=budget_bytes)


@pytest.mark.parametrize("allocator", [Settings(), GROWING], ids=["segments", "growing"])
@given(sizes=st.lists(st.integers(1, 300), min_size=3, max_size=9))
@settings(max_examples=25, deadline=None)
def test_what_is_reserved_is_enough_and_no_less_than_live(allocator: Settings, sizes: list[int]) -> None:
    """In the room that a step without end of room reserves, nothing is given back."""
    trace = chain([size * MIB for size in sizes], [1.0] * (len(sizes) - 1))
    free = fit_blocks(trace, KEEP_ALL, AllocatorRoom(nbytes=1 << 50, settings=allocator))
    assert free.returns == free.failures == 0
    assert free.reserved_bytes >= live_bytes(trace, KEEP_ALL).peak
    assert fit_blocks(trace, KEEP_ALL, AllocatorRoom(nbytes=free.reserved_bytes, settings=allocator)) == free


@pytest.mark.parametrize("allocator", [Settings(), GROWING], ids=["segments", "growing"])
@given(share=st.floats(0.55, 1.0))
@settings(max_examples=25, deadline=None)
def test_a_plan_in_less_is_taken_where_it_costs_less_than_giving_back(allocator: Settings, share: float) -> None:
    trace = halving()
    budget_bytes = int(share * live_bytes(trace, KEEP_ALL).peak)
    room = AllocatorRoom(nbytes=budget_bytes, settings=allocator)
    try:
        first = planned(trace, budget_bytes)
    except InfeasibleError:
        return
    best, best_fit = plan_blocks(lambda nbytes: planned(trace, nbytes), trace, room, budget_bytes)
    first_fit = fit_blocks(trace, first.plan, room)
    assert best_fit == fit_blocks(trace, best.plan, room)
    costs_s = [one.run.step_time_s + fit.returns * RETURN_S for one, fit in ((first, first_fit), (best, best_fit))]
    assert (best_fit.failures > 0, costs_s[1]) <= (first_fit.failures > 0, costs_s[0])
    assert best.live.peak <= budget_bytes
    if not first_fit.returns and not first_fit.failures:
        assert best.plan == first.plan


def test_blocks_that_are_held_beside_the_step_leave_less_room() -> None:
    trace = halving()
    room = AllocatorRoom(nbytes=live_bytes(trace, KEEP_ALL).peak * 3 // 2, settings=GROWING)
    assert fit_blocks(trace, KEEP_ALL, room).failures == 0
    assert fit_blocks(trace, KEEP_ALL, replace(room, outside_bytes=room.nbytes // 2)).failures > 0
