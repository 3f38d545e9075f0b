"""Memory plans on the clock and in bytes, by hand.

The trace: an input of 100 bytes, two layers a (0 to 1 s) and b (1 to 3 s) that make 200 and 300 bytes and pack what
they read, a loss that takes no time, and the backward of b (3 to 7 s) and of a (7 to 9 s).

    moment   0  1       2  3       4     5         6  7         8
             a  pack 0  b  pack 1  loss  unpack 1  b' unpack 0  a'
    number   0: input   1: output of a   2: output of b   3: gradient of it   4, 5: gradients of 1 and 0
"""

from typing import Any

import pytest
from tests.raising import raises
from tests.unit.memory.traces import chain

from trimaran.base.timeline import COMPUTE
from trimaran.pricing.offload_costs import MemoryCosts, measured_costs
from trimaran.program.memory import KEEP_ALL, Decision, MemoryPlan, MemoryStep, RecomputeRecipe
from trimaran.program.types import Kind
from trimaran.simulator.memory import live_bytes, simulate_memory

TRACE = chain((100, 200, 300), (1.0, 2.0))
COSTS = measured_costs(TRACE, to_host_bytes_per_s=100.0, to_device_bytes_per_s=50.0)
OFFLOADED = ((3, Kind.OFFLOAD), (4, Kind.RELEASE), (5, Kind.PREFETCH))
REMADE = ((3, Kind.RELEASE), (5, Kind.RECOMPUTE))
RECIPE = RecomputeRecipe(storage=1, ops=(0,), sources=(0,), duration_s=1.0)


def plan(
    steps: tuple[tuple[int, Kind], ...], decision: Decision = Decision.OFFLOAD, recipe: RecomputeRecipe = RECIPE
) -> MemoryPlan:
    """A plan that moves storage 1 alone."""
    return MemoryPlan(
        policy="test",
        budget_bytes=None,
        decisions={1: decision},
        steps=tuple(MemoryStep(moment=moment, kind=kind, storage=1) for moment, kind in steps),
        recipes={1: recipe} if decision == Decision.RECOMPUTE else {},
        reasons={},
    )


def test_without_a_plan_operations_follow_each_other() -> None:
    run = simulate_memory(TRACE, KEEP_ALL, COSTS)
    assert (run.step_time_s, run.stall_s, run.slowdown) == (9.0, 0.0, 0.0)
    assert [(span.start_s, span.end_s) for span in run.timeline.select(stream=COMPUTE)] == [(0.0, 9.0)]


def test_without_a_plan_a_packed_storage_stays_until_its_last_window_ends() -> None:
    """At b' there are the input, 1, the gradients of 2 and of 1: 100 + 200 + 300 + 200."""
    assert live_bytes(TRACE, KEEP_ALL).at.tolist() == [300, 300, 600, 600, 900, 600, 800, 300, 400]


def test_an_offloaded_storage_is_away_between_del_and_pre() -> None:
    """200 bytes less at the loss. At the pack itself the caller still holds it."""
    steps = ((3, Kind.OFFLOAD), (3, Kind.RELEASE), (5, Kind.PREFETCH))
    live = live_bytes(TRACE, plan(steps))
    assert live.at.tolist() == [300, 300, 600, 600, 700, 600, 800, 300, 400]
    assert (live.peak, live.moment) == (800, 6)
    assert live.mean == (300 + 600 + 700 + 800 + 400) / 5


def test_del_waits_for_the_copy_out_and_the_unpack_for_the_copy_back() -> None:
    """The copy out runs from 3 to 5 s, the copy back from 5 to 9; b' from 9 to 13, a' from 13 to 15."""
    steps = ((3, Kind.OFFLOAD), (3, Kind.RELEASE), (5, Kind.PREFETCH))
    run = simulate_memory(TRACE, plan(steps), COSTS)
    assert run.step_time_s == 15.0
    assert {step.token: stall for step, stall in run.stalls.items()} == {"3:OFF1": 2.0, "5:PRE1": 4.0}
    assert [(copy.start_s, copy.end_s, copy.nbytes) for copy in run.copies] == [(3.0, 5.0, 200), (5.0, 9.0, 200)]
    assert run.starts_s.tolist() == [0.0, 1.0, 1.0, 3.0 + 2.0, 5.0, 9.0, 9.0, 13.0, 13.0]
    assert (run.to_host_bytes, run.to_device_bytes) == (200, 200)


def test_the_latency_of_a_copy_is_paid_each_way() -> None:
    costs = MemoryCosts(
        durations_s=COSTS.durations_s,
        to_host_bytes_per_s=100.0,
        to_device_bytes_per_s=50.0,
        copy_latency_s=0.5,
        source="test",
    )
    steps = ((3, Kind.OFFLOAD), (3, Kind.RELEASE), (5, Kind.PREFETCH))
    assert simulate_memory(TRACE, plan(steps), costs).step_time_s == 16.0


def test_a_recompute_takes_its_recipes_time_and_no_copy() -> None:
    run = simulate_memory(TRACE, plan(REMADE, Decision.RECOMPUTE), COSTS)
    assert (run.step_time_s, run.recompute_s, run.stall_s) == (10.0, 1.0, 0.0)
    assert [span.instruction for span in run.timeline.select(stream=COMPUTE)] == ["0-4", "5:RE1", "5-8"]


def test_what_is_recomputed_is_away_from_its_last_pack_to_its_recompute() -> None:
    live = live_bytes(TRACE, plan(REMADE, Decision.RECOMPUTE))
    assert live.at.tolist() == [300, 300, 600, 600, 700, 600, 800, 300, 400]


LONG = chain((100, 200, 300, 50), (1.0, 2.0, 4.0))
"""    moment   0  1       2  3       4  5       6     7         8   9         10  11        12
             a  pack 0  b  pack 1  c  pack 2  loss  unpack 2  c'  unpack 1  b'  unpack 0  a'
    number   0: input   1, 2, 3: outputs   4: gradient of 3   5, 6, 7: gradients of 2, 1, 0
"""


def long_plan(*steps: tuple[int, Kind, int], recipes: dict[int, RecomputeRecipe]) -> MemoryPlan:
    """A plan that recomputes what has a recipe."""
    return MemoryPlan(
        policy="test",
        budget_bytes=None,
        decisions=dict.fromkeys(recipes, Decision.RECOMPUTE),
        steps=tuple(MemoryStep(moment=moment, kind=kind, storage=storage) for moment, kind, storage in steps),
        recipes=recipes,
        reasons={},
    )


def test_a_long_recipe_holds_what_is_on_its_way_only_while_it_runs() -> None:
    """2 from the input. At moment 7: the input, 1, which is kept, a gradient, and 200 + 300 in the making."""
    recipe = RecomputeRecipe(storage=2, ops=(0, 2), sources=(0,), duration_s=3.0)
    made = live_bytes(LONG, long_plan((5, Kind.RELEASE, 2), (7, Kind.RECOMPUTE, 2), recipes={2: recipe}))
    kept = live_bytes(LONG, KEEP_ALL)
    assert kept.at[7] == 100 + 200 + 300 + 50
    assert made.at[7] == 100 + 200 + 50 + (200 + 300)
    assert made.at[8] == kept.at[8]


def test_a_chain_keeps_its_sources_until_their_own_last_use() -> None:
    """At moment 7 first 1 is made, then 2 from it, and 1 stays until b' at 10, as if it had been kept."""
    recipes = {
        1: RecomputeRecipe(storage=1, ops=(0,), sources=(0,), duration_s=1.0),
        2: RecomputeRecipe(storage=2, ops=(2,), sources=(1,), duration_s=2.0),
    }
    steps = ((3, Kind.RELEASE, 1), (5, Kind.RELEASE, 2), (7, Kind.RECOMPUTE, 1), (7, Kind.RECOMPUTE, 2))
    costs = measured_costs(LONG, to_host_bytes_per_s=100.0, to_device_bytes_per_s=50.0)
    chained = long_plan(*steps, recipes=recipes)
    assert simulate_memory(LONG, chained, costs).step_time_s == 21.0 + 3.0
    live, kept = live_bytes(LONG, chained), live_bytes(LONG, KEEP_ALL)
    assert (kept.at - live.at).tolist() == [0, 0, 0, 0, 200, 200, 500, 0, 0, 0, 0, 0, 0]


def test_a_source_stays_until_the_last_recompute_that_reads_it() -> None:
    """1 is needed last at moment 10, and a recompute at 11 reads it. The input and a gradient are there too."""
    recipe = RecomputeRecipe(storage=0, ops=(2,), sources=(1,), duration_s=0.0)
    plan_of_0 = long_plan((1, Kind.RELEASE, 0), (11, Kind.RECOMPUTE, 0), recipes={0: recipe})
    live, kept = live_bytes(LONG, plan_of_0), live_bytes(LONG, KEEP_ALL)
    assert kept.at[11] == 100 + 200
    assert live.at[11] == 100 + 200 + 200 + 300


@pytest.mark.parametrize(
    ("wrong", "code", "figures"),
    [
        (plan(((3, Kind.OFFLOAD), (5, Kind.PREFETCH))), "memory-step.missing", {"storage": 1}),
        (plan(((3, Kind.OFFLOAD), (3, Kind.PREFETCH), (5, Kind.RELEASE))), "memory-step.wrong-order", {"storage": 1}),
        (
            plan(((1, Kind.OFFLOAD), (3, Kind.RELEASE), (5, Kind.PREFETCH))),
            "memory-step.before-last-write",
            {"storage": 1},
        ),
        (
            plan(((3, Kind.OFFLOAD), (3, Kind.RELEASE), (7, Kind.PREFETCH))),
            "memory-step.absent-when-needed",
            {"match": r"\b3\b", "moment": 5},
        ),
        (plan(OFFLOADED), "memory-step.no-tick", {"match": r"\b4\b", "step": "4:DEL1"}),
        (
            plan(((3, Kind.OFFLOAD), (1, Kind.RELEASE), (5, Kind.PREFETCH))),
            "memory-step.not-in-order",
            {"match": r"\b3\b"},
        ),
        (plan((*REMADE, (7, Kind.RECOMPUTE)), Decision.RECOMPUTE), "memory-step.twice", {}),
        (
            plan(((3, Kind.OFFLOAD), *REMADE), Decision.RECOMPUTE),
            "memory-step.not-decided",
            {"match": r"\b1\b", "step": "3:OFF1"},
        ),
        (plan(REMADE, Decision.KEEP), "memory-step.not-decided", {"match": r"\b1\b", "step": "3:DEL1"}),
        (
            plan(REMADE, Decision.RECOMPUTE, RecomputeRecipe(storage=2, ops=(2,), sources=(1,), duration_s=1.0)),
            "memory-step.no-recipe",
            {},
        ),
        (
            plan(REMADE, Decision.RECOMPUTE, RecomputeRecipe(storage=1, ops=(6,), sources=(0,), duration_s=1.0)),
            "memory-step.recipe-too-late",
            {"match": "6,"},
        ),
        (
            plan(REMADE, Decision.RECOMPUTE, RecomputeRecipe(storage=1, ops=(0,), sources=(3,), duration_s=1.0)),
            "memory-step.source-not-held",
            {"match": r"\b3\b"},
        ),
    ],
)
def test_a_plan_that_cannot_be_done_is_refused(wrong: MemoryPlan, code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        live_bytes(TRACE, wrong)
    with raises(code, **figures):
        simulate_memory(TRACE, wrong, COSTS)


def test_a_recompute_whose_source_is_away_is_refused() -> None:
    """0 is away from 1 to 7, and the recompute of 1 at 5 reads it."""
    away = MemoryPlan(
        policy="test",
        budget_bytes=None,
        decisions={0: Decision.OFFLOAD, 1: Decision.RECOMPUTE},
        steps=tuple(
            MemoryStep(moment=moment, kind=kind, storage=storage)
            for moment, kind, storage in (
                (1, Kind.OFFLOAD, 0),
                (1, Kind.RELEASE, 0),
                (3, Kind.RELEASE, 1),
                (5, Kind.RECOMPUTE, 1),
                (7, Kind.PREFETCH, 0),
            )
        ),
        recipes={1: RECIPE},
        reasons={},
    )
    with raises("memory-step.source-away", match=r"\b0\b.*\b1\b.*\b7\b", step="5:RE1"):
        live_bytes(TRACE, away)


def test_a_storage_that_cannot_be_moved_is_refused() -> None:
    steps = (MemoryStep(moment=5, kind=Kind.RELEASE, storage=3), MemoryStep(moment=7, kind=Kind.RECOMPUTE, storage=3))
    wrong = MemoryPlan(
        policy="test",
        budget_bytes=None,
        decisions={3: Decision.RECOMPUTE},
        steps=steps,
        recipes={},
        reasons={},
    )
    with raises("memory-step.must-stay", match="activation, 300 bytes", storage=3):
        live_bytes(TRACE, wrong)


def test_costs_of_another_trace_are_refused() -> None:
    with raises("memory-simulation.other-trace", match=r"\b13\b.*\b9\b"):
        simulate_memory(TRACE, KEEP_ALL, measured_costs(LONG, to_host_bytes_per_s=1.0, to_device_bytes_per_s=1.0))
