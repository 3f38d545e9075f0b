"""The halves of a backward: their time, their marks, their memory."""

import dataclasses

import pytest
from tests import builders
from tests.builders import network, table_for
from tests.graphs import boundaries, chain

from trimaran.graph.types import Graph
from trimaran.pricing.compute import weight_shares
from trimaran.pricing.memory import memory_changes, segment_memory
from trimaran.pricing.program import price
from trimaran.program.lowering.lower import lower
from trimaran.simulator.engine import simulate

GRAPH = network(4)
PIPELINE = builders.strategy(pp=2, boundaries=("op1",), schedule="zero-bubble", microbatches=2)


def retarget(graph: Graph, **targets: str) -> Graph:
    ops = tuple(dataclasses.replace(op, target=targets.get(op.id, op.target)) for op in graph.ops)
    return dataclasses.replace(graph, ops=ops)


def test_a_layer_has_half_of_its_backward_to_put_off_and_the_first_one_all() -> None:
    """The data needs no gradient; the loss has no weights; a norm computes both at once."""
    shares = weight_shares(retarget(chain(4), op2="BatchNorm2d", op3="aten.conv2d.default"), execution="eager")
    assert shares == {"op0": 1.0, "op1": 0.5, "op2": 0.0, "op3": 0.5, "loss": 0.0}


def test_a_layer_with_a_frozen_weight_has_nothing_to_put_off() -> None:
    graph = chain(2)
    frozen = tuple(
        dataclasses.replace(parameter, trainable=parameter.name != "op1.weight") for parameter in graph.parameters
    )
    shares = weight_shares(dataclasses.replace(graph, parameters=frozen), execution="eager")
    assert shares["op1"] == 0.0


def test_a_compiled_segment_puts_nothing_off() -> None:
    assert set(weight_shares(chain(3), execution="compiled").values()) == {0.0}


def test_halves_cost_what_their_layers_put_off() -> None:
    """Microbatches of 4: op0 has 8 ms of backward, all of it put off; op1 16 ms, half of it; op2 and op3 half each of
    24 and 32 ms, the loss 8 ms in the first half.
    """
    program = lower(GRAPH, PIPELINE, batch=8)
    compute = price(program, GRAPH, PIPELINE, table_for(GRAPH), builders.cluster(2), batch=8).compute
    milliseconds = {name: 1000 * cost.seconds for name, cost in compute.items()}
    assert milliseconds["r0/0I0"] == pytest.approx(8)
    assert milliseconds["r0/0W0"] == pytest.approx(8 + 8)
    assert milliseconds["r1/1I0"] == pytest.approx(12 + 16 + 8)
    assert milliseconds["r1/1W0"] == pytest.approx(12 + 16)


def test_a_bucket_is_complete_where_the_second_half_has_passed_its_operation() -> None:
    """Of 16 ms of the second half of stage 0, op1's 8 ms come first: b0 of op1 is there after half of it."""
    strategy = dataclasses.replace(PIPELINE, dp=2, bucket_bytes=1)
    marks = price(
        lower(GRAPH, strategy, batch=16), GRAPH, strategy, table_for(GRAPH), builders.cluster(4), batch=16
    ).marks
    assert marks["r0/0W1", "b0"] == pytest.approx(0.5)
    assert marks["r0/0W1", "b3"] == 1.0


def test_the_first_half_frees_what_the_second_does_not_need() -> None:
    """Stage 1, 4 samples a microbatch: it keeps t2, t3 and the loss, 16 bytes each, and receives t1.

    To the second half it leaves t2, which op3 reads (op2 reads what was received), and the gradients of t2 and t3.
    """
    memory = segment_memory(GRAPH, PIPELINE, batch=4)[1]
    assert (memory.kept, memory.put_off, memory.put_off_gradients) == (48, 16, 32)
    changes = memory_changes(lower(GRAPH, PIPELINE, batch=8), segment_memory(GRAPH, PIPELINE, batch=4))
    born, died = changes["r1/1I0"]
    assert (born - memory.backward_peak, died - memory.backward_peak) == (32 + 16, 48 - 16)
    # The gradient that is sent back is freed by its send, t1 and what was left by the second half.
    assert changes["r1/1W0"][1] - memory.backward_peak == 16 + 32 + 16


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "interleaved"])
def test_every_rank_ends_a_step_with_what_it_began_with(schedule: str) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    strategy = builders.strategy(
        pp=2,
        chunks=chunks,
        boundaries=boundaries(2 * chunks),
        schedule=schedule,  # type: ignore[arg-type]
        microbatches=4,
    )
    program = lower(GRAPH, strategy, batch=16)
    costs = price(program, GRAPH, strategy, table_for(GRAPH), builders.cluster(2), batch=16)
    for curve, resident in zip(simulate(program, costs).memory, costs.resident_bytes, strict=True):
        assert curve[-1][1] == resident


def test_stages_keep_what_their_order_has_in_flight() -> None:
    """Of 8 microbatches GPipe has all in flight, 1F1B 4 on the first of four stages, with 16 bytes kept of each."""
    peaks = {}
    for schedule in ("gpipe", "1f1b"):
        strategy = builders.strategy(pp=4, boundaries=boundaries(4), schedule=schedule, microbatches=8)  # type: ignore[arg-type]
        program = lower(GRAPH, strategy, batch=32)
        costs = price(program, GRAPH, strategy, table_for(GRAPH), builders.cluster(4), batch=32)
        peaks[schedule] = max(nbytes for _, nbytes in simulate(program, costs).memory[0])
    assert peaks["gpipe"] - peaks["1f1b"] == (8 - 4) * 16


def test_a_further_microbatch_adds_its_gradients_to_those_that_are_there() -> None:
    """1 ms for each of the 4 trained tensors of a stage, in every backward but the first."""
    table = table_for(GRAPH)
    step = table.steps[GRAPH.digest]
    fit = builders.tensor_fit(per_tensor_s=1e-3)
    more = dataclasses.replace(table, steps={GRAPH.digest: dataclasses.replace(step, accumulate=fit)})
    strategy = dataclasses.replace(PIPELINE, schedule="1f1b")
    program = lower(GRAPH, strategy, batch=8)
    before, after = (
        price(program, GRAPH, strategy, known, builders.cluster(2), batch=8).compute for known in (table, more)
    )
    assert after["r1/1B0"].seconds == pytest.approx(before["r1/1B0"].seconds)
    assert after["r1/1B1"].seconds == pytest.approx(before["r1/1B1"].seconds + 4e-3)
