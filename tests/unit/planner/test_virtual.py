"""Whole networks in less memory than they would take: what it adds to a step, and when a search tries it."""

import dataclasses

import pytest
from tests import builders
from tests.memory_chains import KIB, Unit, chain_trace
from tests.raising import raises
from tests.unit.planner.test_search import GRAPH, TABLE

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.graph.trace.types import TraceOp
from trimaran.graph.types import Graph, Phase
from trimaran.memory.minimum import minimum_memory
from trimaran.planner.candidates import Candidate
from trimaran.planner.explanation.what_if import changed, parse_change
from trimaran.planner.memory_plans import BudgetEffect, least_squeeze, squeeze
from trimaran.planner.pins import NO_PINS, parse_pins, pins_of_strategy, read_pins
from trimaran.planner.problem import assess, assess_split, costs_of, effect_of_memory
from trimaran.planner.result import Search, said_of_codec
from trimaran.planner.search import search, untried_memory_plans
from trimaran.pricing.offload_costs import HookCosts, TracedStep, measured_costs
from trimaran.program.memory import KEEP_ALL, parse_codec
from trimaran.program.rules.fits_graph import check_strategy
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


def test_a_codec_shortens_copies_that_do_not_hide() -> None:
    """bf16 halves what crosses a slow link; a codec that is slower than the link, or of what no ReLU made, is idle."""
    step = traced(bytes_per_s=10 * MIB, repeatable=False)
    budget = peak(step) - 2 * MIB

    def under(codec: str | None, rate: float = 1e12) -> BudgetEffect:
        rated = dataclasses.replace(step, coding_bytes_per_s={"bf16": rate, "sparse": rate})
        choice = None if codec is None else parse_codec(codec)
        return squeeze(builders.strategy(memory_bytes=budget, codec=choice), rated)

    plain, coded = under(None), under("bf16")
    assert (coded.factor - 1) < 0.6 * (plain.factor - 1)
    assert (plain.coded_bytes, coded.coded_bytes) == (0, coded.offloaded_bytes)
    assert coded.offloaded_bytes > 0
    for same in (under("bf16", rate=MIB), under("sparse")):
        assert (same.factor, same.coded_bytes) == (plain.factor, 0)


def test_a_codec_without_a_rate_is_refused() -> None:
    step = traced()
    with raises("memory-plan.codec-without-rate", InputError, codec="bf16"):
        squeeze(builders.strategy(memory_bytes=peak(step), codec=parse_codec("bf16")), step)


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


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("bytes_per_s", [1e12, 20 * MIB, MIB])
@pytest.mark.parametrize("away", [0, 1, 2, 4])
def test_a_lower_bound_is_below_the_plan_and_says_what_must_be_paid(
    repeatable: bool, bytes_per_s: float, away: int
) -> None:
    step = traced(bytes_per_s=bytes_per_s, repeatable=repeatable)
    strategy = builders.strategy(memory_bytes=peak(step) - away * MIB)
    planned, least = squeeze(strategy, step).factor, least_squeeze(strategy, step).factor
    assert 1.0 <= least <= planned + 1e-9
    if bytes_per_s == MIB and not repeatable:
        assert least - 1.0 >= 0.5 * (planned - 1.0)


def test_what_no_plan_holds_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    step, tried = traced(), []

    def refuse(*_: object, **limits: int) -> None:
        tried.append(limits["budget_bytes"])
        raise InfeasibleError("nothing fits", code="memory-plan.not-found")

    monkeypatch.setattr("trimaran.planner.memory_plans.plan_memory", refuse)
    for strategy in (builders.strategy(memory_bytes=MIB), builders.strategy(memory_bytes=MIB, bucket_bytes=MIB)):
        with raises("memory-plan.not-found", InfeasibleError):
            squeeze(strategy, step)
    assert tried == [MIB]


def test_what_cannot_be_as_fast_as_what_fits_gets_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas are faster than the pipelines that fit; copies at 10 B/s would add seconds, at 1 TB/s nothing."""
    monkeypatch.setattr("trimaran.planner.memory_plans.DEFAULT_SMALLEST_BYTES", 1)
    unit = Unit(nbytes=64, forward_s=0.01, backward_s=0.01, repeatable=False)
    trace = chain_trace([unit] * 12, batch_bytes=64)
    for rate in (10.0, 1e12):
        costs = measured_costs(trace, to_host_bytes_per_s=rate, to_device_bytes_per_s=rate)
        whole = [
            one
            for one in searched(590, {8: TracedStep(trace=trace, costs=costs)}, zero=0).candidates
            if one.strategy.memory_bytes
        ]
        assert bool(whole) == (rate > 10.0)


def searched(memory_bytes: int, traces: dict[int, TracedStep], **pins: int) -> Search[Candidate]:
    problem = builders.problem(graph=GRAPH, table=TABLE, memory_bytes=memory_bytes, batch=16, traces=traces)
    return search(dataclasses.replace(problem, pins=parse_pins(**pins)))


def test_a_network_that_does_not_fit_is_tried_under_a_memory_plan() -> None:
    """The network of the search's other tests needs 1 KiB; the trace beside it can do with less than its input."""
    plain = search(builders.problem(graph=GRAPH, table=TABLE, batch=16))
    needs = max(next(one for one in plain.candidates if one.strategy == builders.strategy()).peak_bytes)
    trace = chain_trace([Unit(nbytes=64, forward_s=0.01, backward_s=0.01)] * 12, batch_bytes=64)
    costs = measured_costs(trace, to_host_bytes_per_s=1e12, to_device_bytes_per_s=1e12)
    step = TracedStep(trace=trace, costs=costs)
    budget = needs - 1
    assert minimum_memory(trace).nbytes <= budget
    result = searched(budget, {16: step}, microbatches=1, dp=1, pp=1, tp=1)
    virtual = {one.strategy: one for one in result.candidates if one.strategy.memory_bytes is not None}
    assert list(virtual) == [builders.strategy(memory_bytes=budget)]
    assert max(virtual[builders.strategy(memory_bytes=budget)].peak_bytes) <= budget
    # Two microbatches take as long here, and fit without one.
    assert all(one.strategy.memory_bytes is None for one in searched(budget, {16: step}).candidates)


def test_whole_networks_that_a_memory_plan_might_make_faster_are_named() -> None:
    """Without traces stages are the best that fits, and replicas are faster by their bound."""
    pins = parse_pins(tp=1, microbatches=1, zero=0, forbid=["sharded"])
    problem = builders.problem(graph=GRAPH, table=TABLE, batch=16, pins=pins)
    whole = search(problem).chosen
    small = dataclasses.replace(
        problem, cluster=builders.problem(graph=GRAPH, memory_bytes=max(whole.peak_bytes) - 1).cluster
    )
    found = search(small)
    assert whole.strategy.dp == 2
    assert found.chosen.step_time_s > 1.01 * whole.step_time_s
    (note,) = untried_memory_plans(small, found)
    assert note.startswith("dp2 lacks nothing but memory")
    assert '--strategy "dp2 in' in note
    assert untried_memory_plans(problem, search(problem)) == ()
    tried = dataclasses.replace(small, traces={8: traced()}, squeezed=[whole.strategy])
    assert untried_memory_plans(tried, found) == ()
    assert untried_memory_plans(dataclasses.replace(tried, squeezed=[]), found) == (note,)
    forbidden = dataclasses.replace(small, pins=dataclasses.replace(pins, forbid=("memory",)))
    assert untried_memory_plans(forbidden, found) == ()


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


def test_stages_code_what_they_offload() -> None:
    graph, step = staged(4, bytes_per_s=100 * MIB)
    step = dataclasses.replace(step, coding_bytes_per_s={"bf16": 1e12})
    problem = builders.problem(graph=graph, table=TABLE, batch=16, traces={4: step})
    tight = assess(builders.strategy(pp=2, schedule="1f1b", microbatches=4), problem).strategy
    tight = dataclasses.replace(tight, memory_bytes=10 * MIB)
    coded = dataclasses.replace(tight, codec=parse_codec("bf16"))
    assert assess_split(coded, problem).step_time_s < assess_split(tight, problem).step_time_s
    effects = effect_of_memory(coded, problem)
    assert effects is not None
    assert effects[0].coded_bytes == effects[0].offloaded_bytes > 0


def test_a_codec_that_is_asked_for_is_in_memory_plans_and_in_nothing_else() -> None:
    """A plan says what the codec is worth, or that nothing is offloaded."""
    step = traced(bytes_per_s=10 * MIB, repeatable=False)
    step = dataclasses.replace(step, coding_bytes_per_s={"bf16": 1e12})

    def found(name: str) -> tuple[Candidate, str]:
        pins = pins_of_strategy(name)
        problem = builders.problem(graph=GRAPH, table=TABLE, batch=16, traces={16: step}, pins=pins)
        chosen = search(problem).chosen
        return chosen, said_of_codec(problem, chosen)

    tight, said = found("one device in 6.0 MiB codec:bf16")
    assert tight.name == "one device in 6.0 MiB codec:bf16"
    assert "codec bf16 (not exact" in said
    assert "one device in 6.0 MiB " in said
    roomy, said = found("one device in 64.0 MiB codec:bf16")
    assert roomy.step_time_s < tight.step_time_s
    assert "offloads nothing" in said
    assert found("one device in 6.0 MiB")[1] == ""


def test_a_codec_pins_memory_plans_alone() -> None:
    pins = parse_pins(codec="sparse:2.6")
    assert pins.names == ("--codec sparse:2.6",)
    assert read_pins(pins.options) == pins
    assert pins.without("--codec sparse:2.6") == NO_PINS
    sparse = builders.strategy(memory_bytes=MIB, codec=parse_codec("sparse:2.6"))
    assert pins.objection(builders.strategy()) == pins.objection(sparse) == ""
    assert pins.objection(builders.strategy(memory_bytes=MIB)) == "--codec sparse:2.6"
    assert NO_PINS.objection(sparse) == "the lack of --codec"
    with raises("codec.unknown", InputError):
        parse_pins(codec="zip")
    with raises("pin.degrees-and-others", InputError, match="--codec sparse conflicts with --forbid memory"):
        parse_pins(codec="sparse", forbid=["memory"])
    with raises("strategy.codec-without-memory", InputError, codec="sparse:2.6"):
        check_strategy(GRAPH, builders.strategy(codec=parse_codec("sparse:2.6")), batch=16)


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
