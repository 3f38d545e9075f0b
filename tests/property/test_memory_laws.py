"""Laws of planned memory, on random networks: chains with additions and changes in place, drawn with their costs.

Whatever is decided, the schedule's plan keeps what the schedule said; whatever plan there is, no moment needs less than
the floor, and no step is faster than the bound.
"""

import itertools
import random
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recipes import check_recipe
from tests.unit.memory.traces import residual

from trimaran.base.errors import InfeasibleError
from trimaran.graph.trace.types import StepTrace
from trimaran.memory.blocks import _calls
from trimaran.memory.bound import lower_bound
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.problem import MemoryProblem, memory_problem
from trimaran.memory.schedule import build_plan, most_on_host, schedule, step_time
from trimaran.memory.search import plan_memory
from trimaran.pricing.copy_codecs import CopyCodec
from trimaran.pricing.offload_costs import MemoryCosts, measured_costs
from trimaran.program.memory import KEEP_ALL, MemoryPlan
from trimaran.simulator.memory import MemoryRun, host_peak, live_bytes, simulate_memory

# Sums of tens of floats near 1, in another order; and the tolerance of the solver of linear programs.
TOLERANCE, SOLVER_TOLERANCE = 1e-9, 1e-6
# A search is no proof: with more memory it may end elsewhere.
NOISE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a network and its costs are made from; small, so that a counterexample can be read."""

    sizes: tuple[int, ...]
    skips: tuple[tuple[int, int], ...]
    in_place: tuple[bool, ...]
    rate: float
    latency_s: float
    seed: int

    @property
    def trace(self) -> StepTrace:
        numbers = random.Random(self.seed)
        seconds = [numbers.uniform(0.1, 3.0) for _ in self.sizes[1:]]
        return residual(self.sizes, seconds, self.skips, in_place=self.in_place)

    def costs(self, trace: StepTrace) -> MemoryCosts:
        return measured_costs(
            trace,
            to_host_bytes_per_s=self.rate,
            to_device_bytes_per_s=1.5 * self.rate,
            copy_latency_s=self.latency_s,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    length = draw(st.integers(2, 9))
    pairs = st.tuples(st.integers(0, length - 1), st.integers(0, length - 1)).map(lambda pair: (min(pair), max(pair)))
    return Case(
        sizes=tuple(draw(st.lists(st.integers(1, 200), min_size=length + 1, max_size=length + 1))),
        skips=tuple(draw(st.lists(pairs, max_size=3, unique=True))),
        in_place=tuple(draw(st.lists(st.booleans(), min_size=length, max_size=length))),
        rate=draw(st.sampled_from((5.0, 50.0, 500.0, 1e6))),
        latency_s=draw(st.sampled_from((0.0, 0.1))),
        seed=draw(st.integers(0, 5)),
    )


def any_plan(problem: MemoryProblem, budget_bytes: int, numbers: random.Random) -> tuple[MemoryPlan, float, int]:
    """A plan of random decisions, the time that its schedule foretells, and the excess that it admits."""
    choice = [numbers.randrange(2 + len(unit.ways)) for unit in problem.units]
    found = schedule(problem, choice, budget_bytes)
    plan = build_plan(problem, choice, found, policy="random", budget_bytes=budget_bytes)
    return plan, step_time(problem, found), found.excess


def lanes_overlap(run: MemoryRun) -> bool:
    spans = [(span.stream, span.start_s, span.end_s) for span in run.timeline]
    spans.sort()
    return any(a[0] == b[0] and b[1] < a[2] - TOLERANCE for a, b in itertools.pairwise(spans))


@given(case=cases(), share=st.floats(0.0, 1.0), draws=st.integers(0, 10_000))
def test_a_schedule_keeps_what_it_says(case: Case, share: float, draws: int) -> None:
    """Its plan is legal, takes the time that it foretold, and keeps the budget wherever it says that it fits."""
    trace = case.trace
    costs = case.costs(trace)
    problem = memory_problem(trace, costs)
    least, peak = minimum_memory(trace).nbytes, live_bytes(trace, KEEP_ALL).peak
    budget = least + round(share * (peak - least))
    plan, time_s, excess = any_plan(problem, budget, random.Random(draws))
    run, live = simulate_memory(trace, plan, costs), live_bytes(trace, plan)
    assert abs(run.step_time_s - time_s) <= TOLERANCE * time_s
    assert live.peak <= budget or excess > 0
    assert live.peak <= budget + excess
    assert not lanes_overlap(run)
    assert run.step_time_s >= run.compute_s + run.recompute_s - TOLERANCE
    assert run.step_time_s <= run.compute_s + run.recompute_s + run.stall_s + TOLERANCE * run.step_time_s
    for recipe in plan.recipes.values():
        check_recipe(trace, recipe)


@given(case=cases(), draws=st.integers(0, 10_000))
def test_what_is_asked_of_the_allocator_is_what_the_plan_keeps_alive(case: Case, draws: int) -> None:
    """Recomputed, fetched and kept alike: the most bytes between what is taken and given back, step after step."""
    trace = case.trace
    problem = memory_problem(trace, case.costs(trace))
    plan, _, _ = any_plan(problem, minimum_memory(trace).nbytes, random.Random(draws))
    before, during = _calls(trace, plan)
    held, most = dict(before), 0
    for block, nbytes in (*during, *before, *during):
        if nbytes:
            held[block] = nbytes
        else:
            held.pop(block, None)
        most = max(most, sum(held.values()))
    assert most == live_bytes(trace, plan).peak


@given(case=cases(), draws=st.integers(0, 10_000))
def test_no_plan_needs_less_than_the_floor_or_beats_the_bound(case: Case, draws: int) -> None:
    trace = case.trace
    costs = case.costs(trace)
    problem = memory_problem(trace, costs)
    least = minimum_memory(trace)
    plan, _, _ = any_plan(problem, least.nbytes, random.Random(draws))
    live = live_bytes(trace, plan)
    assert (live.at[least.moment]) >= least.nbytes
    bound = lower_bound(trace, costs, live.peak, smallest_bytes=0)
    run = simulate_memory(trace, plan, costs)
    assert bound.compute_s - TOLERANCE <= bound.step_time_s <= run.step_time_s * (1 + SOLVER_TOLERANCE)
    assert bound.step_time_s <= bound.offload_s * (1 + SOLVER_TOLERANCE)
    if not plan.recipes:
        assert bound.offload_s <= run.step_time_s * (1 + SOLVER_TOLERANCE)


@given(case=cases(), share=st.floats(0.0, 1.0))
@settings(max_examples=25)
def test_a_plan_fits_at_every_moment_and_is_the_same_each_time(case: Case, share: float) -> None:
    trace = case.trace
    costs = case.costs(trace)
    kept = live_bytes(trace, KEEP_ALL)
    least = minimum_memory(trace).nbytes
    budget = least + round(share * (kept.peak - least))
    first = plan_memory(trace, costs, budget_bytes=budget, smallest_bytes=0)
    assert np.all(first.live.at <= budget)
    assert first.run.step_time_s >= first.bound.step_time_s * (1 - SOLVER_TOLERANCE)
    assert (budget < kept.peak) or first.plan is KEEP_ALL
    again = plan_memory(trace, costs, budget_bytes=budget, smallest_bytes=0)
    assert repr(again.plan) == repr(first.plan)


@given(case=cases(), share=st.floats(0.0, 0.8))
@settings(max_examples=20)
def test_more_memory_is_not_slower(case: Case, share: float) -> None:
    trace = case.trace
    costs = case.costs(trace)
    least, peak = minimum_memory(trace).nbytes, live_bytes(trace, KEEP_ALL).peak
    small = least + round(share * (peak - least))
    large = small + (peak - small) // 4
    tight = plan_memory(trace, costs, budget_bytes=small, smallest_bytes=0)
    loose = plan_memory(trace, costs, budget_bytes=large, smallest_bytes=0)
    assert loose.run.step_time_s <= tight.run.step_time_s * (1 + NOISE)
    assert loose.bound.step_time_s <= tight.bound.step_time_s * (1 + SOLVER_TOLERANCE)


@given(case=cases(), share=st.floats(0.0, 1.0), room=st.floats(0.0, 1.0))
@settings(max_examples=40)
def test_nothing_is_offloaded_beyond_the_room_on_the_host(case: Case, share: float, room: float) -> None:
    """Where there is a plan it keeps both limits, and its bound counts both; where there is none it is refused."""
    trace = case.trace
    host_bytes = round(room * sum(storage.copy_bytes for storage in trace.movable))
    costs = replace(case.costs(trace), host_bytes=host_bytes)
    least, peak = minimum_memory(trace).nbytes, live_bytes(trace, KEEP_ALL).peak
    budget = least + round(share * (peak - least))
    try:
        found = plan_memory(trace, costs, budget_bytes=budget, smallest_bytes=0)
    except InfeasibleError:
        assert budget < peak
        return
    assert found.live.peak <= budget
    assert host_peak(trace, found.plan) == found.host_peak_bytes <= host_bytes
    assert found.run.step_time_s >= found.bound.step_time_s * (1 - SOLVER_TOLERANCE)
    free = lower_bound(trace, case.costs(trace), budget, smallest_bytes=0)
    assert free.step_time_s <= found.bound.step_time_s * (1 + SOLVER_TOLERANCE)


@given(case=cases(), share=st.floats(0.0, 1.0), draws=st.integers(0, 10_000), exact=st.booleans())
@settings(max_examples=60)
def test_a_schedule_with_coded_copies_takes_the_time_of_its_plan(
    case: Case, share: float, draws: int, exact: bool
) -> None:
    """Every second storage has a codec. No plan beats the bound, and nothing rounded is read by a recipe."""
    trace = case.trace
    ratios = {storage.number: 2.0 for storage in trace.movable if storage.number % 2}
    codec = CopyCodec(name="drawn", is_exact=exact, coding_bytes_per_s=8 * case.rate, ratios=ratios)
    costs = replace(case.costs(trace), codec=codec)
    problem = memory_problem(trace, costs)
    least, peak = minimum_memory(trace).nbytes, live_bytes(trace, KEEP_ALL).peak
    plan, time_s, _ = any_plan(problem, least + round(share * (peak - least)), random.Random(draws))
    run = simulate_memory(trace, plan, costs)
    assert abs(run.step_time_s - time_s) <= TOLERANCE * time_s
    assert plan.codecs.keys() <= ratios.keys()
    read = {source for recipe in plan.recipes.values() for source in recipe.sources}
    assert exact or not read & plan.codecs.keys()
    bound = lower_bound(trace, costs, live_bytes(trace, plan).peak, smallest_bytes=0)
    assert bound.step_time_s <= run.step_time_s * (1 + SOLVER_TOLERANCE)


@given(case=cases(), share=st.floats(0.0, 1.0), draws=st.integers(0, 10_000))
def test_a_schedule_counts_on_the_host_what_its_plan_puts_there(case: Case, share: float, draws: int) -> None:
    trace = case.trace
    problem = memory_problem(trace, case.costs(trace))
    least, peak = minimum_memory(trace).nbytes, live_bytes(trace, KEEP_ALL).peak
    budget, numbers = least + round(share * (peak - least)), random.Random(draws)
    choice = [numbers.randrange(2 + len(unit.ways)) for unit in problem.units]
    found = schedule(problem, choice, budget)
    plan = build_plan(problem, choice, found, policy="random", budget_bytes=budget)
    assert host_peak(trace, plan) == most_on_host(problem, found)
