"""Whole networks in less memory than they would take: what it adds to a step, and when a search tries it."""

import dataclasses

import pytest
from tests import builders
from tests.memory_chains import KIB, Unit, chain_trace
from tests.raising import raises
from tests.unit.planner.test_search import GRAPH, TABLE

from trimaran.base.errors import InfeasibleError
from trimaran.graph.trace.types import TraceOp
from trimaran.graph.types import Graph, Phase
from trimaran.memory.minimum import minimum_memory
from trimaran.planner.candidates import Candidate
from trimaran.planner.explanation.what_if import changed, parse_change
from trimaran.planner.memory_plans import squeeze
from trimaran.planner.pins import NO_PINS, pins_of_strategy
from trimaran.planner.problem import assess, assess_split, costs_of, effect_of_memory
from trimaran.planner.result import Search
from trimaran.planner.search import search
from trimaran.pricing.offload_costs import HookCosts, TracedStep, measured_costs
from trimaran.program.memory import KEEP_ALL
from trimaran.program.types import Kind
from trimaran.simulator.memory import live_bytes

MIB = KIB * KIB


def traced(*, nbytes: int = MIB, bytes_per_s: float = 1e12, repeatable: bool = True) -> TracedStep:
    """Eight operations of 10 ms that make 1 MiB each."""
    unit = Unit(nbytes=nbytes, forward_s=0.01, backward_s=0.01, repeatable=repeatable)
    trace = chain_trace([unit] * 8)
    costs = measured_costs(trace, to_host_bytes_per_s=bytes_per_s, to_device_bytes_per_s=bytes_per_s)
    return TracedStep(trace=trace, costs=costs)


def peak(step: TracedStep) -> int:
    return live_bytes(step.trace, KEEP_ALL).peak


def test_a_budget_above_the_peak_adds_nothing() -> None:
    step = traced()
    effect = squeeze(builders.strategy(memory_bytes=peak(step)), step)
    assert effect.factor == 1.0
    assert effect.peak_bytes == peak(step)


def test_copies_that_hide_cost_nothing_and_hold_the_budget() -> None:
    step = traced()
    budget = peak(step) - 2 * MIB
    effect = squeeze(builders.strategy(memory_bytes=budget), step)
    assert effect.factor == pytest.approx(1.0, abs=0.01)
    assert effect.peak_bytes <= budget


def test_copies_that_do_not_hide_make_the_step_longer() -> None:
    """1 MiB at 1 MiB/s takes 1 s each way, a step takes 0.16 s."""
    step = traced(bytes_per_s=MIB, repeatable=False)
    assert squeeze(builders.strategy(memory_bytes=peak(step) - 2 * MIB), step).factor > 2.0


def test_a_host_without_room_makes_it_recompute_or_refuse() -> None:
    """2 MiB must leave. With room for one, the other is recomputed in 10 ms; what cannot be recomputed does not fit."""
    step, once = traced(), traced(repeatable=False)
    strategy = builders.strategy(memory_bytes=peak(step) - 2 * MIB)
    assert squeeze(strategy, step, host_bytes=8 * MIB).factor == pytest.approx(1.0, abs=0.01)
    assert squeeze(strategy, step, host_bytes=MIB).factor > 1.05
    with raises("memory-plan.not-found", InfeasibleError, host_bytes=MIB):
        squeeze(strategy, once, host_bytes=MIB)


def test_hooks_lengthen_a_step_that_moves_something() -> None:
    """Copies hide behind 16 operations of 10 ms. A pack takes 1 ms; so does copying each of 2 MiB on busy cores."""
    plain = traced(repeatable=False)
    step = dataclasses.replace(plain, hooks=HookCosts(tick_s=1e-3, copying_s_per_byte=1e-3 / MIB, cores=2))
    budget = peak(step) - 2 * MIB
    free, alone = (squeeze(builders.strategy(memory_bytes=budget), one) for one in (plain, step))
    assert alone.factor == pytest.approx(free.factor + 1e-3 * len(step.trace.packs) / 0.16, abs=1e-4)
    both = squeeze(builders.strategy(dp=2, memory_bytes=budget), step)
    assert both.factor - alone.factor == pytest.approx(2 * 1e-3 / 0.16, abs=1e-4)


def test_devices_that_are_added_bring_a_core_each() -> None:
    """Copying takes 1 s a byte of the ranks where every core has one: two ranks on two cores, not two on four."""
    free = traced(repeatable=False)
    busy = dataclasses.replace(free, hooks=HookCosts(copying_s_per_byte=1.0, cores=2))
    strategy = builders.strategy(dp=2, memory_bytes=peak(free) - 2 * MIB)

    def factor(step: TracedStep, devices: int) -> float:
        given = builders.problem(graph=GRAPH, table=TABLE, batch=16, traces={8: step})
        effect = effect_of_memory(strategy, changed(given, parse_change(f"devices={devices}")))
        assert effect is not None
        return effect[0].factor

    assert factor(busy, 2) > 1e6
    assert factor(busy, 4) == factor(free, 4)


def test_a_budget_above_the_peak_needs_no_hooks() -> None:
    step = dataclasses.replace(traced(), hooks=HookCosts(tick_s=1.0))
    assert squeeze(builders.strategy(memory_bytes=peak(step)), step).factor == 1.0


def test_gradients_that_stay_leave_less_for_the_rest() -> None:
    unit = Unit(nbytes=MIB, forward_s=0.01, backward_s=0.01, weight_bytes=MIB)
    trace = chain_trace([unit] * 8)
    step = TracedStep(trace=trace, costs=measured_costs(trace, to_host_bytes_per_s=1e12, to_device_bytes_per_s=1e12))
    least = minimum_memory(trace).nbytes
    assert squeeze(builders.strategy(memory_bytes=least), step).peak_bytes == least
    with raises("memory-plan.below-minimum", InfeasibleError):
        squeeze(builders.strategy(dp=2, memory_bytes=least), step)


def searched(memory_bytes: int, traces: dict[int, TracedStep]) -> Search[Candidate]:
    problem = builders.problem(graph=GRAPH, table=TABLE, memory_bytes=memory_bytes, batch=16, traces=traces)
    return search(problem)


def test_a_network_that_does_not_fit_is_tried_under_a_memory_plan() -> None:
    """The network of the search's other tests needs 1 KiB; the trace beside it can do with less than its input."""
    plain = search(builders.problem(graph=GRAPH, table=TABLE, batch=16))
    needs = max(next(one for one in plain.candidates if one.strategy == builders.strategy()).peak_bytes)
    trace = chain_trace([Unit(nbytes=64, forward_s=0.01, backward_s=0.01)] * 12, batch_bytes=64)
    costs = measured_costs(trace, to_host_bytes_per_s=1e12, to_device_bytes_per_s=1e12)
    step = TracedStep(trace=trace, costs=costs)
    budget = needs - 1
    assert minimum_memory(trace).nbytes <= budget
    result = searched(budget, {16: step})
    virtual = {one.strategy: one for one in result.candidates if one.strategy.memory_bytes is not None}
    assert list(virtual) == [builders.strategy(memory_bytes=budget)]
    assert max(virtual[builders.strategy(memory_bytes=budget)].peak_bytes) <= budget


def test_without_traces_nothing_is_virtualized() -> None:
    plain = search(builders.problem(graph=GRAPH, table=TABLE, batch=16))
    needs = max(next(one for one in plain.candidates if one.strategy == builders.strategy()).peak_bytes)
    assert all(one.strategy.memory_bytes is None for one in searched(needs - 1, {}).candidates)


def test_a_budget_without_a_trace_is_refused() -> None:
    problem = builders.problem(graph=GRAPH, table=TABLE, batch=16)
    with raises("plan.microbatch-not-traced", microbatch=16):
        assess(builders.strategy(memory_bytes=MIB), problem)


def test_forwards_and_backwards_take_longer_by_the_factor() -> None:
    step = traced(bytes_per_s=MIB, repeatable=False)
    problem = builders.problem(graph=GRAPH, table=TABLE, batch=16, traces={16: step})
    plain = assess(builders.strategy(), problem)
    strategy = builders.strategy(memory_bytes=peak(step) - 2 * MIB)
    held = dataclasses.replace(plain, strategy=strategy)
    factor = squeeze(strategy, step).factor
    for instruction in plain.program:
        before, after = (costs_of(one, problem).compute[instruction.id].seconds for one in (plain, held))
        longer = instruction.kind in (Kind.FORWARD, Kind.BACKWARD)
        assert after == pytest.approx(before * factor if longer else before)


def staged(samples: int, *, bytes_per_s: float = 1e12, nbytes: int = MIB) -> tuple[Graph, TracedStep]:
    """The network of the search's other tests, and a trace of it whose operations make so many bytes each."""
    units = [Unit(nbytes=nbytes, forward_s=1e-3 * samples, backward_s=2e-3 * samples, repeatable=False)] * len(
        GRAPH.ops
    )
    trace = chain_trace(units, batch_bytes=nbytes)
    names = [op.id for op in GRAPH.ops]
    events = tuple(
        dataclasses.replace(event, origin=names[int(event.name[1:]) if event.name[1:].isdigit() else -1])
        if isinstance(event, TraceOp) and event.phase is not Phase.UPDATE
        else event
        for event in trace.events
    )
    trace = dataclasses.replace(trace, events=events)
    costs = measured_costs(trace, to_host_bytes_per_s=bytes_per_s, to_device_bytes_per_s=bytes_per_s)
    graph = dataclasses.replace(GRAPH, ops=tuple(dataclasses.replace(op, origins=(op.id,)) for op in GRAPH.ops))
    return graph, TracedStep(trace=trace, costs=costs)


def test_stages_under_a_budget_take_the_time_of_their_own_plans() -> None:
    """Slow copies: the first stage, with two microbatches in flight, has to offload, and takes longer for it."""
    graph, step = staged(4, bytes_per_s=100 * MIB)
    problem = builders.problem(graph=graph, table=TABLE, batch=16, traces={4: step})
    plain = assess(builders.strategy(pp=2, schedule="1f1b", microbatches=4), problem)
    roomy, tight = (dataclasses.replace(plain.strategy, memory_bytes=room * MIB) for room in (64, 10))
    effects = effect_of_memory(tight, problem)
    assert effects is not None
    assert list(effects) == [0, 1]
    assert effects[0].factor > effects[1].factor
    assert max(effect.peak_bytes for effect in effects.values()) <= 10 * MIB
    assert assess_split(roomy, problem).step_time_s == pytest.approx(plain.step_time_s)
    found = assess_split(tight, problem)
    assert found.step_time_s > plain.step_time_s
    assert max(found.peak_bytes) <= 10 * MIB
    with raises("memory-plan.below-minimum-of-stage", InfeasibleError, match="stage 0"):
        assess_split(dataclasses.replace(tight, memory_bytes=MIB), problem)


def test_a_pipeline_that_lacks_memory_alone_is_planned_with_offload() -> None:
    """Pinned to two stages, whose activations by the network's own graph do not fit: each stage has a memory plan."""
    pins = dataclasses.replace(NO_PINS, pp=2, tp=1, dp=1, schedule="1f1b", microbatches=4)
    graph, step = staged(4, nbytes=2)
    table = dataclasses.replace(TABLE, fingerprint=dataclasses.replace(TABLE.fingerprint, kind="cuda"))

    def within(room: int, traces: dict[int, TracedStep]) -> Candidate | None:
        problem = builders.problem(graph=graph, table=table, batch=16, pins=pins, memory_bytes=room, traces=traces)
        try:
            return search(problem).chosen
        except InfeasibleError:
            return None

    room = next(room for room in range(1024, 0, -16) if within(room, {}) is None)
    found = within(room, {4: step})
    assert found is not None
    assert (found.strategy.pp, found.strategy.memory_bytes) == (2, room)
    assert max(found.peak_bytes) <= room


def test_a_named_budget_is_that_of_the_plan_and_of_stages_too() -> None:
    """Named with a budget a pipeline has it; with a schedule whose stages have no memory plan it is refused."""
    room = 64 * MIB
    graph, step = staged(8)
    pins = pins_of_strategy("pp2 1f1b m2 in 64.0 MiB")
    found = search(builders.problem(graph=graph, table=TABLE, batch=16, pins=pins, traces={8: step}))
    assert {one.strategy.memory_bytes for one in found.candidates} == {room}
    assert (found.chosen.strategy.pp, found.chosen.strategy.schedule) == (2, "1f1b")
    assert "in 64.0 MiB" in found.chosen.name
    assert max(found.chosen.peak_bytes) <= room
    with raises("plan.nothing-fits", InfeasibleError, match="splits backwards"):
        pins = pins_of_strategy("pp2 zero-bubble m2 in 64.0 MiB")
        search(builders.problem(graph=GRAPH, table=TABLE, batch=16, pins=pins))
