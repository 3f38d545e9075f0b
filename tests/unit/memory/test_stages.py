"""The step of a pipeline's rank, made from one microbatch of the whole network."""

import dataclasses

import numpy as np
import pytest
from tests.memory_chains import KIB, Unit, chain_trace
from tests.unit.planner.test_search import GRAPH, network

from trimaran.graph.trace.live_bytes import live_kept
from trimaran.graph.trace.types import StepTrace, Tick, TraceOp
from trimaran.graph.types import Graph, Phase
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.problem import memory_problem
from trimaran.memory.schedule import schedule
from trimaran.memory.search import everything, plan_memory
from trimaran.memory.stages import Pass, passes_of, repeated, segmented, stage_step
from trimaran.pricing.offload_costs import TracedStep, measured_costs
from trimaran.program.lowering.lower import lower
from trimaran.program.memory import KEEP_ALL
from trimaran.program.strategy import Schedule, Strategy
from trimaran.simulator.memory import live_bytes, simulate_memory

OPS = [op.id for op in GRAPH.ops]


def traced(units: list[Unit], graph: Graph = GRAPH) -> tuple[TracedStep, Graph]:
    """A chain as long as a graph, whose operations say where they are in it; and the graph, which says so too.

    Unit i of the chain is operation i, and the loss belongs to the last.
    """
    trace = chain_trace(units)
    names = [op.id for op in graph.ops]

    def placed(event: TraceOp | Tick) -> TraceOp | Tick:
        if isinstance(event, Tick) or event.phase is Phase.UPDATE:
            return event
        number = len(units) - 1 if event.name == "loss" else int(event.name[1:])
        return dataclasses.replace(event, origin=names[number])

    trace = dataclasses.replace(trace, events=tuple(placed(event) for event in trace.events))
    costs = measured_costs(trace, to_host_bytes_per_s=1e9, to_device_bytes_per_s=1e9)
    ops = tuple(dataclasses.replace(op, origins=(op.id,)) for op in graph.ops)
    return TracedStep(trace=trace, costs=costs), dataclasses.replace(graph, ops=ops)


def names(trace: StepTrace) -> list[str]:
    return [event.name if isinstance(event, TraceOp) else event.kind for event in trace.events]


ONE = Unit(nbytes=KIB, forward_s=0.01, backward_s=0.02)


def test_a_pass_has_the_events_of_its_segment_in_one_direction() -> None:
    """1F1B on the first of two stages, two operations there: F(0) F(1) B(0) B(1).

    Each forward has two operations with what they pack, each backward two with what they unpack. Its durations are
    those of its operations: 2 · (0.01 + 0.01 + 0.02 + 0.02) = 0.12 s.
    """
    step, graph = traced([ONE] * len(OPS))
    whole = segmented(step, graph, [OPS[:2], OPS[2:]])
    passes = [Pass(0, 0, True), Pass(0, 1, True), Pass(0, 0, False), Pass(0, 1, False)]
    found = stage_step(whole, passes)
    forward, backward = ["f0", "pack", "f1", "pack"], ["unpack", "b1", "unpack", "b0"]
    assert names(found.trace) == [*forward, *forward, *backward, *backward]
    assert [event.moment for event in found.trace.events] == list(range(16))
    assert [pack.index for pack in found.trace.packs] == [0, 1, 2, 3]
    assert [unpack.pack for unpack in found.trace.unpacks] == [1, 0, 3, 2]
    assert found.costs.compute_s == pytest.approx(0.12)


def test_what_crosses_is_held_until_the_backward_of_its_microbatch_ends() -> None:
    """One stage of the middle, one operation: it receives 1 KiB, sends 1 KiB, and receives and sends gradients."""
    step, graph = traced([ONE] * len(OPS))
    whole = segmented(step, graph, [OPS[:1], OPS[1:2], OPS[2:]])
    found = stage_step(whole, [Pass(1, 0, True), Pass(1, 0, False)])
    assert names(found.trace) == ["f1", "pack", "unpack", "b1"]
    received, sent, gradient, passed = (live_of(found.trace, number) for number in range(4))
    assert (received, sent) == ((0, 4), (0, 4))
    # Received one pass ahead, at the beginning of the forward; what is passed on is made by the backward.
    assert gradient == (0, 4)
    assert passed[0] == 3
    assert live_kept(found.trace).max() == 4 * KIB


def test_a_stage_without_a_backward_lets_go_as_its_forward_ends() -> None:
    """All of the first stage is frozen: its rank has forwards alone."""
    step, graph = traced([ONE] * len(OPS))
    found = stage_step(segmented(step, graph, [OPS[:2], OPS[2:]]), [Pass(0, 0, True), Pass(0, 1, True)])
    assert names(found.trace) == ["f0", "pack", "f1", "pack"] * 2
    assert not found.trace.unpacks
    assert live_kept(found.trace).max() <= 2 * live_kept(found.trace)[1]


def live_of(trace: StepTrace, number: int) -> tuple[int, int]:
    return trace.storages[number].birth, trace.storages[number].keep_end


def test_one_stage_and_one_microbatch_are_the_step_without_state_and_update() -> None:
    units = [
        Unit(nbytes=KIB, forward_s=0.01, backward_s=0.02, keeps="both", skip=0 if n > 1 else None)
        for n in range(len(OPS))
    ]
    step, graph = traced(units)
    whole = segmented(step, graph, [OPS])
    found = stage_step(whole, [Pass(0, 0, True), Pass(0, 0, False)]).trace
    plain = step.trace
    assert names(found) == names(plain)[:-1]
    np.testing.assert_array_equal(live_kept(found), live_kept(plain)[:-1])
    assert minimum_memory(found).nbytes == minimum_memory(plain).nbytes


DEEP = network(40)
"""A chain of as many operations as a network has."""


@pytest.mark.parametrize(("order", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_a_stage_has_a_plan_for_every_budget_from_its_minimum_on(order: Schedule, chunks: int, share: float) -> None:
    """Lives of several microbatches are not nested: what is needed last goes, and nothing that fits is refused."""
    units = [
        Unit(nbytes=(1 + n % 5) * KIB, forward_s=0.01, backward_s=0.02, keeps="both", repeatable=False)
        for n in range(len(DEEP.ops))
    ]
    step, graph = traced(units, DEEP)
    boundaries = DEEP.split_points[9:30:10][: 2 * chunks - 1]
    strategy = Strategy(pp=2, schedule=order, chunks=chunks, microbatches=8, boundaries=boundaries)
    program = lower(DEEP, strategy, batch=16)
    whole = segmented(step, graph, [[op.id for op in ops] for ops in DEEP.parts(boundaries)])
    for instructions in program.ranks:
        stage = stage_step(whole, passes_of(instructions))
        least, most = minimum_memory(stage.trace).nbytes, int(live_kept(stage.trace).max())
        budget = least + int(share * (most - least))
        problem = memory_problem(stage.trace, stage.costs)
        assert schedule(problem, everything(problem, recompute=False), budget).excess == 0
        found = plan_memory(stage.trace, stage.costs, budget_bytes=budget, effort=0.05)
        assert live_bytes(stage.trace, found.plan).peak <= budget
        assert found.run.step_time_s == simulate_memory(stage.trace, found.plan, stage.costs).step_time_s
        assert found.run.step_time_s >= found.bound.step_time_s * (1 - 1e-9)


@pytest.mark.parametrize(("order", "chunks", "most"), [("1f1b", 1, 6), ("interleaved", 2, 30)])
def test_few_microbatches_stand_for_a_long_step(order: Schedule, chunks: int, most: int) -> None:
    """Both need as much memory, and a plan makes both longer by the same share."""
    units = [
        Unit(nbytes=(1 + n % 5) * KIB, forward_s=1e-4, backward_s=2e-4, keeps="both", repeatable=bool(n % 2))
        for n in range(len(DEEP.ops))
    ]
    step, graph = traced(units, DEEP)
    boundaries = DEEP.split_points[9:30:10][: 2 * chunks - 1]
    program = lower(
        DEEP, Strategy(pp=2, schedule=order, chunks=chunks, microbatches=32, boundaries=boundaries), batch=64
    )
    whole = segmented(step, graph, [[op.id for op in ops] for ops in DEEP.parts(boundaries)])
    for instructions in program.ranks:
        passes = passes_of(instructions)
        few = repeated(passes, 2 if chunks > 1 else 1)
        assert len({one.microbatch for one in few}) <= most < 32
        needs, shares = [], []
        for some in (passes, few):
            stage = stage_step(whole, some)
            least, peak = minimum_memory(stage.trace).nbytes, int(live_kept(stage.trace).max())
            needs.append((least, peak))
            found = plan_memory(stage.trace, stage.costs, budget_bytes=(2 * least + peak) // 3, effort=0.05)
            shares.append(found.run.step_time_s / simulate_memory(stage.trace, KEEP_ALL, stage.costs).step_time_s)
        assert needs[0] == needs[1]
        assert shares[1] == pytest.approx(shares[0], abs=0.005)


def test_all_microbatches_of_gpipe_are_in_flight_so_none_is_left_out() -> None:
    program = lower(
        DEEP, Strategy(pp=2, schedule="gpipe", microbatches=32, boundaries=DEEP.split_points[19:20]), batch=64
    )
    for instructions in program.ranks:
        assert repeated(passes_of(instructions), 1) == passes_of(instructions)
