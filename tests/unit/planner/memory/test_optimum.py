"""Plans against the best of all, on chains that are small enough to try everything.

Random chains of 4 to 6 operations, every second one with skips; cheap and dear operations, links from slow to fast,
budgets from just above the floor to almost enough.
"""

import random
import statistics

import pytest
from tests.independent_replay import Rates, replay
from tests.memory_chains import random_chain
from tests.memory_optimum import best_plan

from trimaran.costs.memory_costs import MemoryCosts, measured_costs
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory import floor, plan_memory
from trimaran.program.memory import KEEP_ALL

SEEDS = range(48)
WITHIN = 0.05


def chain(seed: int) -> tuple[StepTrace, MemoryCosts, Rates, int]:
    draw = random.Random(seed)
    trace = random_chain(draw, least=4, most=6, skips=seed % 2 == 1)
    costs = measured_costs(
        trace,
        to_host_bytes_per_s=draw.choice([2e9, 1e10, 5e10]),
        to_device_bytes_per_s=draw.choice([2e9, 1e10, 5e10]),
    )
    rates = Rates(
        durations_s=costs.durations_s.tolist(),
        to_host_bytes_per_s=costs.to_host_bytes_per_s,
        to_device_bytes_per_s=costs.to_device_bytes_per_s,
    )
    least, most = floor(trace).nbytes, replay(trace, KEEP_ALL, rates).peak_bytes
    return trace, costs, rates, int(least + (most - least) * draw.choice([0.1, 0.3, 0.5, 0.8]))


def distance(seed: int) -> float:
    """How much longer the planned step takes than the best one [1]; both by the independent replay."""
    trace, costs, rates, budget_bytes = chain(seed)
    plan = plan_memory(trace, costs, budget_bytes=budget_bytes, smallest_bytes=0).plan
    planned = replay(trace, plan, rates)
    assert planned.peak_bytes <= budget_bytes
    return planned.step_time_s / best_plan(trace, rates, budget_bytes).step_time_s - 1


@pytest.fixture(scope="module")
def distances() -> dict[int, float]:
    return {seed: distance(seed) for seed in SEEDS}


def test_no_plan_is_much_slower_than_the_best(distances: dict[int, float]) -> None:
    misses = {seed: round(far, 4) for seed, far in distances.items() if far > WITHIN}
    assert not misses


def test_most_plans_are_the_best(distances: dict[int, float]) -> None:
    assert statistics.median(distances.values()) <= 1e-9


def test_trying_all_is_never_worse_than_the_planner(distances: dict[int, float]) -> None:
    """Or the optimum would be none."""
    assert min(distances.values()) >= -1e-9


def test_the_best_plan_of_a_chain_by_hand() -> None:
    """Nothing fits but recomputing: a slow link, and a cheap operation whose result is large.

    The best step takes its operations and the recompute of the cheap one, once.
    """
    from tests.memory_chains import KIB, Unit, chain_trace

    units = [
        Unit(nbytes=KIB, forward_s=1e-3, backward_s=1e-3),
        Unit(nbytes=64 * KIB, forward_s=1e-4, backward_s=1e-4),
        Unit(nbytes=KIB, forward_s=1e-3, backward_s=1e-3),
        Unit(nbytes=64 * KIB, forward_s=1e-3, backward_s=1e-3),
    ]
    trace = chain_trace(units)
    durations_s = measured_costs(trace, to_host_bytes_per_s=1e6, to_device_bytes_per_s=1e6).durations_s.tolist()
    rates = Rates(durations_s=durations_s, to_host_bytes_per_s=1e6, to_device_bytes_per_s=1e6)
    keep = replay(trace, KEEP_ALL, rates)
    best = best_plan(trace, rates, keep.peak_bytes - 1)
    assert best.step_time_s == pytest.approx(keep.step_time_s + 1e-4)
