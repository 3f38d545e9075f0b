"""Memory plans, seen twice: by the planner's simulator and by a replay that shares no code with it.

Peaks are sums of whole bytes and must be equal at every moment. Times are sums of the same durations in another order.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.independent_replay import Rates, Replay, replay
from tests.memory_draws import random_chain, recipe_from
from tests.representative import each
from torch import nn
from torch.nn import functional as F

from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.types import StepTrace, Tick, TraceOp, TraceStorage
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.search import plan_memory
from trimaran.memory.vdnn import vdnn_all, vdnn_conv
from trimaran.networks.alexnet_overfeat_vgg import Vgg
from trimaran.networks.googlenet_inception import GoogLeNet
from trimaran.networks.gpt import Gpt2
from trimaran.networks.resnet import ResNet
from trimaran.pricing.offload_costs import MemoryCosts, measured_costs
from trimaran.program.memory import KEEP_ALL, Decision, MemoryPlan, MemoryStep, RecomputeRecipe
from trimaran.program.types import Kind
from trimaran.simulator.memory import MemoryRun, live_bytes, simulate_memory

# Sums of tens of durations in another order. What is asked for is 1 %.
TOLERANCE = 1e-9

# Seeds, not hypothesis's own choices: those are mostly extremes, and make plans that move nothing.
draws = st.integers(0, 2**32 - 1).map(random.Random)


def agree(trace: StepTrace, plan: MemoryPlan, costs: MemoryCosts) -> tuple[Replay, MemoryRun]:
    """Both ways, and that they say the same."""
    one, other = replay(trace, plan, rates(costs)), simulate_memory(trace, plan, costs)
    assert list(one.peaks) == live_bytes(trace, plan).at.tolist()
    assert abs(one.step_time_s - other.step_time_s) <= TOLERANCE * other.step_time_s
    assert one.to_host_bytes == other.to_host_bytes
    assert one.to_device_bytes == other.to_device_bytes
    return one, other


def rates(costs: MemoryCosts) -> Rates:
    return Rates(
        durations_s=costs.durations_s.tolist(),
        to_host_bytes_per_s=costs.to_host_bytes_per_s,
        to_device_bytes_per_s=costs.to_device_bytes_per_s,
        latency_s=costs.copy_latency_s,
    )


def random_costs(trace: StepTrace, draw: random.Random) -> MemoryCosts:
    """Copies that take about as long as operations, or much shorter, or much longer."""
    return measured_costs(
        trace,
        to_host_bytes_per_s=draw.choice([1e9, 1e10, 1e11]),
        to_device_bytes_per_s=draw.choice([1e9, 1e10, 1e11]),
        copy_latency_s=draw.choice([0.0, 1e-4]),
    )


def with_scratch(trace: StepTrace, draw: random.Random) -> StepTrace:
    """Some operations take memory that is there only while they run, as convolutions do."""
    events = [
        replace(event, scratch_bytes=draw.randint(1, 2**24))
        if isinstance(event, TraceOp) and draw.random() < 0.3
        else event
        for event in trace.events
    ]
    return replace(trace, events=tuple(events))


def random_plan(trace: StepTrace, draw: random.Random) -> MemoryPlan:
    """Any legal plan, sensible or not: steps at any tick at which they may be done."""
    ticks = [event.moment for event in trace.events if isinstance(event, Tick)]
    steps: list[tuple[int, float, MemoryStep]] = []
    for storage in trace.movable:
        steps += _random_steps(storage, ticks, draw)
    steps.sort(key=lambda entry: entry[:2])
    plan = _with_recipes(trace, [step for _, _, step in steps])
    return replace(plan, waits=dict(_random_waits(trace, plan, ticks, draw)))


def _random_waits(
    trace: StepTrace, plan: MemoryPlan, ticks: list[int], draw: random.Random
) -> Iterator[tuple[int, int]]:
    for step in plan.steps:
        if step.kind == Kind.PREFETCH and draw.random() < 0.3:
            use = next(moment for moment in trace.storages[step.storage].unpacks if moment >= step.moment)
            room = [tick for tick in ticks if step.moment < tick <= use]
            if room:
                yield step.storage, draw.choice(room)


def _random_steps(
    storage: TraceStorage, ticks: list[int], draw: random.Random
) -> Iterator[tuple[int, float, MemoryStep]]:
    decision = draw.choice(list(Decision))
    if decision == Decision.KEEP:
        return
    # Between two uses, or after the last pack and before the first use: there the storage is away.
    start = draw.choice([storage.packs[-1], *storage.unpacks[:-1]])
    end = next(moment for moment in storage.unpacks if moment > start)
    room = [tick for tick in ticks if start + (start in storage.unpacks) <= tick <= end]
    gone, back = sorted((draw.choice(room), draw.choice(room)))
    kinds = {
        Decision.OFFLOAD: (Kind.OFFLOAD, Kind.RELEASE, Kind.PREFETCH),
        Decision.RECOMPUTE: (Kind.RELEASE, Kind.RECOMPUTE),
    }[decision]
    moments = (draw.choice([tick for tick in ticks if storage.packs[-1] <= tick <= gone]), gone, back)
    places = sorted(draw.random() for _ in kinds)
    for kind, moment, place in zip(kinds, moments[-len(kinds) :], places, strict=True):
        yield moment, place, MemoryStep(moment=moment, kind=kind, storage=storage.number)


def _with_recipes(trace: StepTrace, steps: list[MemoryStep]) -> MemoryPlan:
    """Recipes from what is there at each recompute; a storage that has none is kept."""
    recipes: dict[int, RecomputeRecipe] = {}
    moved = {step.storage for step in steps}
    for place, step in enumerate(steps):
        if step.kind != Kind.RECOMPUTE:
            continue
        present = {
            storage.number
            for storage in trace.movable
            if (storage.number not in moved and storage.packs[0] <= step.moment)
            or any(
                other.storage == storage.number and other.kind in (Kind.PREFETCH, Kind.RECOMPUTE)
                for other in steps[:place]
            )
        }
        recipe = recipe_from(trace, step.storage, present)
        if recipe is None:
            return _with_recipes(trace, [other for other in steps if other.storage != step.storage])
        recipes[step.storage] = recipe
    decisions = {step.storage: Decision.RECOMPUTE if step.storage in recipes else Decision.OFFLOAD for step in steps}
    return MemoryPlan(
        policy="random", budget_bytes=None, decisions=decisions, steps=tuple(steps), recipes=recipes, reasons={}
    )


@given(draws)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_peak_and_time_of_any_plan(draw: random.Random) -> None:
    trace = with_scratch(random_chain(draw, least=2, skips=True, keeps=("input", "output", "both", "none")), draw)
    agree(trace, random_plan(trace, draw), random_costs(trace, draw))


@given(draws)
@settings(max_examples=30)
def test_keeping_everything_takes_no_longer_than_the_operations(draw: random.Random) -> None:
    trace = random_chain(draw, skips=True)
    costs = random_costs(trace, draw)
    one, _ = agree(trace, KEEP_ALL, costs)
    assert np.isclose(one.step_time_s, costs.compute_s, rtol=TOLERANCE)
    assert one.to_host_bytes == one.to_device_bytes == 0


@given(draws)
@settings(max_examples=60)
def test_plans_of_the_planner(draw: random.Random) -> None:
    """At a budget between the floor and the peak of keeping everything; what was promised is kept."""
    trace = with_scratch(random_chain(draw, skips=True), draw)
    costs = random_costs(trace, draw)
    least, most = minimum_memory(trace).nbytes, replay(trace, KEEP_ALL, rates(costs)).peak_bytes
    budget_bytes = draw.randint(least, most)
    outcome = plan_memory(trace, costs, budget_bytes=budget_bytes, smallest_bytes=0)
    found, _ = agree(trace, outcome.plan, costs)
    assert found.peak_bytes <= budget_bytes
    assert found.step_time_s >= outcome.bound.step_time_s * (1 - TOLERANCE)


def image_batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(64, 3, 32, 32, device="meta"), torch.empty(64, dtype=torch.long, device="meta")


def text_batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.empty(16, 16, dtype=torch.long, device="meta")
    return tokens, tokens


NETWORKS = {
    "vgg16": (lambda: Vgg(classes=10, width=0.125), image_batch),
    "resnet50": (lambda: ResNet(50, classes=10, width=0.125), image_batch),
    "googlenet": (lambda: GoogLeNet(classes=10, width=0.125), image_batch),
    "gpt2": (lambda: Gpt2(32, 4, 2, vocabulary=64, length=16), text_batch),
}


def network_trace(name: str) -> StepTrace:
    """A step of a narrow network, with momentum, on meta tensors."""
    make, batch = NETWORKS[name]
    with torch.device("meta"):
        model: nn.Module = make()
    inputs, targets = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Recorder(model) as recorder:
        scores = model(inputs)
        F.cross_entropy(scores.flatten(0, -2), targets.flatten()).backward()
        optimizer.step()
    return recorder.recording.trace


@pytest.mark.parametrize("name", each(NETWORKS, "vgg16", "gpt2"))
def test_plans_for_real_networks(name: str) -> None:
    """The planner's at 90, 70 and 50 % of the peak, or just above the floor, and the paper's policies."""
    trace = network_trace(name)
    costs = MemoryCosts(
        durations_s=np.array([_duration_s(event) for event in trace.events]),
        to_host_bytes_per_s=12e9,
        to_device_bytes_per_s=13e9,
        copy_latency_s=1e-5,
        source="rates of a small card",
    )
    keep, _ = agree(trace, KEEP_ALL, costs)
    least_bytes = minimum_memory(trace).nbytes
    for share in (0.9, 0.7, 0.5):
        budget_bytes = max(int(share * keep.peak_bytes), int(1.02 * least_bytes))
        outcome = plan_memory(trace, costs, budget_bytes=budget_bytes, smallest_bytes=0, limit_s=1.5)
        found, _ = agree(trace, outcome.plan, costs)
        assert outcome.plan.moved
        assert found.peak_bytes <= budget_bytes
    for policy in (vdnn_all, vdnn_conv):
        found, _ = agree(trace, policy(trace), costs)
        assert found.to_device_bytes > 0 or name == "gpt2"


def _duration_s(event: TraceOp | Tick) -> float:
    return 1e-6 + event.nbytes / 3e11 + event.flops / 4e12 if isinstance(event, TraceOp) else 0.0
