"""Plans against the best of all, on chains that are small enough to try everything.

Random chains of 4 to 6 operations, every second one with skips; cheap and dear operations, links from slow to fast,
budgets from just above the floor to almost enough.
"""

import random
import statistics

import pytest
from tests.independent_replay import Rates, replay
from tests.memory_chains import KIB, Unit, chain_trace
from tests.memory_draws import random_chain
from tests.memory_optimum import best_plan

from trimaran.graph.trace.types import StepTrace
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.search import plan_memory
from trimaran.pricing.offload_costs import MemoryCosts, measured_costs
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
    least, most = minimum_memory(trace).nbytes, replay(trace, KEEP_ALL, rates).peak_bytes
    return trace, costs, rates, int(least + (most - least) * draw.choice([0.1, 0.3, 0.5, 0.8]))


def planned(seed: int) -> tuple[float, float]:
    """Times of the planned step and of the best one [s], both by the independent replay."""
    trace, costs, rates, budget_bytes = chain(seed)
    plan = plan_memory(trace, costs, budget_bytes=budget_bytes, smallest_bytes=0).plan
    found = replay(trace, plan, rates)
    assert found.peak_bytes <= budget_bytes
    return found.step_time_s, best_plan(trace, rates, budget_bytes, below_s=found.step_time_s).step_time_s


@pytest.fixture(scope="module")
def distances() -> dict[int, float]:
    """By seed, how much longer the planned step takes than the best one [1]."""
    return {seed: one_s / other_s - 1 for seed in SEEDS for one_s, other_s in [planned(seed)]}


def test_no_plan_is_much_slower_than_the_best(distances: dict[int, float]) -> None:
    assert {seed: round(far, 4) for seed, far in distances.items() if far > WITHIN} == {}


def test_most_plans_are_the_best(distances: dict[int, float]) -> None:
    assert statistics.median(distances.values()) <= 1e-9


@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_trying_all_finds_a_plan_as_good_as_the_planners(seed: int) -> None:
    """Without being told how good that is, or the optimum would be none."""
    trace, costs, rates, budget_bytes = chain(seed)
    outcome = plan_memory(trace, costs, budget_bytes=budget_bytes, smallest_bytes=0)
    best = best_plan(trace, rates, budget_bytes)
    assert best.step_time_s <= outcome.run.step_time_s * (1 + 1e-9)
    assert best.step_time_s >= outcome.bound.step_time_s * (1 - 1e-9)


def test_the_best_plan_of_a_chain_by_hand() -> None:
    """A slow link, and a cheap operation whose result is large, and in the way where most is held: at the loss.

    The best step takes its operations, and 0.1 ms for making that result again.
    """
    units = [
        Unit(nbytes=KIB, forward_s=1e-3, backward_s=1e-3),
        Unit(nbytes=64 * KIB, forward_s=1e-4, backward_s=1e-4),
        Unit(nbytes=KIB, forward_s=1e-3, backward_s=1e-3),
        Unit(nbytes=80 * KIB, forward_s=1e-3, backward_s=1e-3),
    ]
    trace = chain_trace(units)
    durations_s = measured_costs(trace, to_host_bytes_per_s=1e6, to_device_bytes_per_s=1e6).durations_s.tolist()
    rates = Rates(durations_s=durations_s, to_host_bytes_per_s=1e6, to_device_bytes_per_s=1e6)
    keep = replay(trace, KEEP_ALL, rates)
    best = best_plan(trace, rates, keep.peak_bytes - 8 * KIB)
    assert best.step_time_s == pytest.approx(keep.step_time_s + 1e-4)
