"""Planning, on chains small enough to think through."""

import dataclasses
import itertools
import random
from typing import Any

import pytest
from tests.raising import raises
from tests.unit.memory.traces import chain

from trimaran.base.errors import InfeasibleError
from trimaran.graph.trace.types import StepTrace
from trimaran.memory.bound import lower_bound
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.problem import memory_problem
from trimaran.memory.schedule import Scores
from trimaran.memory.search import POLICY, MemoryOutcome, plan_memory, step_within
from trimaran.pricing.offload_costs import MemoryCosts, measured_costs
from trimaran.program.memory import KEEP_ALL, Decision
from trimaran.simulator.memory import live_bytes


def costs(trace: StepTrace, rate: float = 100.0) -> MemoryCosts:
    return measured_costs(trace, to_host_bytes_per_s=rate, to_device_bytes_per_s=rate)


def planned(trace: StepTrace, budget: int, rate: float = 100.0, **options: Any) -> MemoryOutcome:
    given = dataclasses.replace(costs(trace, rate), host_bytes=options.pop("host_bytes", None))
    return plan_memory(trace, given, budget_bytes=budget, smallest_bytes=0, **options)


EVEN = chain((100,) * 9, (1.0,) * 8)


def test_what_fits_is_not_touched() -> None:
    outcome = planned(EVEN, live_bytes(EVEN, KEEP_ALL).peak)
    assert outcome.plan is KEEP_ALL
    assert outcome.run.step_time_s == outcome.bound.step_time_s == 24.0


def test_one_byte_less_moves_something() -> None:
    """Copies of 100 bytes take 1 s and hide behind the operations: no time is lost."""
    peak = live_bytes(EVEN, KEEP_ALL).peak
    outcome = planned(EVEN, peak - 1)
    assert outcome.plan.moved
    assert outcome.live.peak <= peak - 1
    assert outcome.run.step_time_s == 24.0
    assert (outcome.plan.policy, outcome.plan.budget_bytes) == (POLICY, peak - 1)


def test_a_slow_link_makes_it_recompute() -> None:
    outcome = planned(EVEN, 700, rate=1e-3)
    assert {outcome.plan.of(number) for number in outcome.plan.moved} == {Decision.RECOMPUTE}
    assert outcome.bound.offload_s > 1000 * outcome.bound.step_time_s


def test_what_cannot_be_recomputed_is_offloaded() -> None:
    trace = chain((100,) * 9, (1.0,) * 8, repeatable=(False,) * 8)
    outcome = planned(trace, 700, rate=1.0)
    assert {outcome.plan.of(number) for number in outcome.plan.moved} == {Decision.OFFLOAD}


def test_a_storage_that_is_banned_is_not_recomputed() -> None:
    outcome = planned(EVEN, 500, rate=1e-3)
    recomputed = frozenset(outcome.plan.recipes)
    banned = planned(EVEN, 500, rate=1e-3, banned=recomputed)
    assert recomputed
    assert not recomputed & set(banned.plan.recipes)
    assert banned.live.peak <= 500


def test_storages_on_the_host_keep_to_its_memory() -> None:
    """Recomputing is dear here, so that all would go to the host; at most two at once may."""
    free, capped = planned(EVEN, 600, rate=1e6), planned(EVEN, 600, rate=1e6, host_bytes=200)
    assert free.run.to_host_bytes > 200
    assert 0 < capped.run.to_host_bytes <= 200
    assert capped.live.peak <= 600
    with raises("memory-plan.not-found", InfeasibleError, host_bytes=100):
        planned(chain((100,) * 9, (1.0,) * 8, repeatable=(False,) * 8), 700, host_bytes=100)


@pytest.mark.parametrize("seed", [2, 3, 4, 6, 23])
def test_a_plan_that_is_there_is_found_with_a_tight_host(seed: int) -> None:
    """Half way to the floor, with so little on the host that most must be recomputed: all choices are tried beside."""
    numbers = random.Random(seed)
    sizes = tuple(numbers.choice((50, 100, 200)) for _ in range(8))
    seconds = tuple(numbers.choice((0.5, 1.0, 3.0)) for _ in range(7))
    trace = chain(sizes, seconds, repeatable=tuple(numbers.random() < 0.8 for _ in range(7)))
    rate = numbers.choice((30.0, 100.0, 1000.0))
    problem = memory_problem(trace, costs(trace, rate), smallest_bytes=0, banned=frozenset())
    decisions = [range(3 if one.ways else 2) for one in problem.units]
    budget = (minimum_memory(trace).nbytes + live_bytes(trace, KEEP_ALL).peak) // 2
    for host_bytes in (100, 200):
        scores = Scores(problem, budget, host_bytes)
        best = min(scores.score(choice) for choice in itertools.product(*decisions))
        if best.excess == 0:
            outcome = planned(trace, budget, rate, host_bytes=host_bytes)
            assert outcome.live.peak <= budget
            assert outcome.run.step_time_s <= best.step_time_s * 1.001


def test_at_the_floor_there_is_a_plan() -> None:
    least = minimum_memory(EVEN).nbytes
    assert planned(EVEN, least).live.peak == least


def test_small_storages_are_kept_unless_it_does_not_fit_otherwise() -> None:
    trace = chain((100, 10, 100, 10, 100, 10, 100, 10), (1.0,) * 7)
    peak, least = live_bytes(trace, KEEP_ALL).peak, minimum_memory(trace).nbytes
    large = plan_memory(trace, costs(trace), budget_bytes=peak - 1, smallest_bytes=100)
    assert {trace.storages[number].nbytes for number in large.plan.moved} == {100}
    assert plan_memory(trace, costs(trace), budget_bytes=least, smallest_bytes=1000).live.peak == least


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (2, 3, 4, 5))])
def test_the_plan_is_nearly_the_best_of_all_choices(seed: int) -> None:
    """Every choice of keep, offload and recompute for each of six storages, scored one by one: at most 2 % better."""
    numbers = random.Random(seed)
    trace = chain([numbers.randint(20, 200) for _ in range(8)], [numbers.uniform(0.2, 2.0) for _ in range(7)])
    given = costs(trace, numbers.choice((20.0, 60.0, 200.0)))
    least, peak = minimum_memory(trace).nbytes, live_bytes(trace, KEEP_ALL).peak
    budget = least + (peak - least) // 3
    problem = memory_problem(trace, given)
    scores = Scores(problem, budget)
    options = [range(2 + len(unit.ways)) for unit in problem.units]
    best = min(scores.score(choice) for choice in itertools.product(*options))
    outcome = plan_memory(trace, given, budget_bytes=budget, smallest_bytes=0)
    assert best.excess == 0
    assert best.step_time_s * (1 - 1e-9) <= outcome.run.step_time_s <= best.step_time_s * 1.02
    assert outcome.bound.step_time_s <= best.step_time_s * (1 + 1e-6)


@pytest.mark.parametrize("share", [1.0, 1.02, 1.1, 1.5, 2.0])
def test_whether_some_plan_is_as_fast_as_asked_is_what_the_best_plan_says(share: float) -> None:
    """The first that is as fast will do; where none is, no plan is faster than what is given."""
    trace = chain([size << 20 for size in (30, 20, 50, 10, 40, 20)], (1.0, 2.0, 1.0, 3.0, 1.0))
    given = costs(trace, rate=20.0 * 2**20)
    budget = (minimum_memory(trace).nbytes + live_bytes(trace, KEEP_ALL).peak) // 2
    best_s = plan_memory(trace, given, budget_bytes=budget).run.step_time_s
    enough_s = share * lower_bound(trace, given, budget_bytes=budget).compute_s
    found_s = step_within(trace, given, budget_bytes=budget, enough_s=enough_s)
    assert (found_s <= enough_s) == (best_s <= enough_s)
    assert found_s > enough_s or found_s >= best_s


def test_the_same_question_has_the_same_answer() -> None:
    trace = chain([60 + 10 * (k % 5) for k in range(15)], [1.0 + k % 3 for k in range(14)])
    first, second = planned(trace, 500, rate=30.0), planned(trace, 500, rate=30.0)
    assert (first.plan, first.evaluations) == (second.plan, second.evaluations)


def test_every_decision_has_a_reason() -> None:
    outcome = planned(EVEN, 500, rate=30.0)
    assert set(outcome.plan.reasons) == set(outcome.plan.decisions) == {unit.number for unit in EVEN.movable[1:]}
    for number in outcome.plan.moved:
        assert "100 B: " in outcome.plan.reasons[number]


def test_the_bound_without_a_squeeze_is_the_compute() -> None:
    bound = lower_bound(EVEN, costs(EVEN), 10_000)
    assert (bound.step_time_s, bound.offload_s, bound.compute_s) == (24.0, 24.0, 24.0)


def test_the_bound_of_offloading_counts_what_the_link_cannot_carry() -> None:
    """Of eight even layers, all but what the floor holds must be away; the link takes 100 s for each storage."""
    trace = chain((100,) * 9, (1.0,) * 8, repeatable=(False,) * 8)
    least = minimum_memory(trace).nbytes
    bound = lower_bound(trace, costs(trace, rate=1.0), least, smallest_bytes=0)
    outcome = planned(trace, least, rate=1.0)
    assert bound.step_time_s == bound.offload_s
    assert 1.0 <= outcome.ratio_to_limit <= 1.05


def test_costs_of_another_trace_are_refused() -> None:
    with raises("memory-plan.other-trace", match=r"\b33\b.*\b5\b"):
        plan_memory(chain((1, 2), (1.0,)), costs(EVEN), budget_bytes=100)
