"""What buckets leave exposed: the simulator against a replay of their events, one after the other.

A bucket is ready where the backward has passed its last operation and encoded it. It leaves when the one before has
arrived. It is decoded when it is there, the backward has ended and the bucket before is decoded. What is exposed is the
time from the end of the backward to the update.

A bucket of two sums: where the next one is complete the backward waits for the first sum, makes the terms of the second
out of it, starts that, and only then encodes the next one. The second sum of the last one starts after the backward.
"""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.builders import exact, network, table_for
from tests.graphs import parameter

from trimaran.graph.types import Graph
from trimaran.planner.candidates import PricedJob, evaluate
from trimaran.planner.search import exposed_s
from trimaran.pricing.gradient_compression import coding_keys
from trimaran.pricing.program import price
from trimaran.pricing.tables import CostTable
from trimaran.pricing.types import Transfer
from trimaran.program.gradients import Compression
from trimaran.program.lowering.lower import lower
from trimaran.program.strategy import Strategy

LENGTH = 6
BATCH = 16
PER_REPLICA = BATCH // 2
METHODS = (None, Compression(method="bf16"), Compression(method="powersgd", rank=1))
CLUSTER = builders.cluster(memory_bytes=2**40)

times = st.floats(1e-6, 0.2).map(lambda value: round(value, 6))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, CostTable, Strategy]:
    """A chain of layers with one or two matrices of some sizes, links of some speed, buckets of some size."""
    graph = network(LENGTH)
    sides = draw(st.lists(st.integers(2, 64), min_size=LENGTH, max_size=LENGTH))
    matrices = draw(st.integers(1, 2))
    ops = tuple(dataclasses.replace(op, parameters=op.parameters[:matrices]) for op in graph.ops)
    parameters = tuple(
        parameter(name, 4 * side * side, shape=(side, side))
        for op, side in zip(ops[:LENGTH], sides, strict=True)
        for name in op.parameters
    )
    graph = dataclasses.replace(graph, ops=ops, parameters=parameters)
    method = draw(st.sampled_from(METHODS))
    latency_s, per_byte_s = draw(times), draw(times) / 4096
    curves = {
        builders.curve_key("AR", 2): tuple(
            (size, exact(latency_s + size * per_byte_s)) for size in (1, 64, 1024, 10**6)
        ),
        builders.curve_key("BC", 2): ((1, exact(1e-6)),),
    }
    if method is not None:
        for key in coding_keys(method):
            coded_s = draw(times)
            curves[key] = ((1, exact(coded_s)), (10**6, exact(coded_s)))
    table = dataclasses.replace(table_for(graph), curves=curves, interference={})
    return graph, table, builders.strategy(dp=2, bucket_bytes=draw(st.integers(1, 30_000)), compression=method)


def replayed_s(graph: Graph, table: CostTable, strategy: Strategy) -> float:
    """What is exposed, by following the buckets [s]."""
    program = lower(graph, strategy, batch=BATCH)
    costs = price(program, graph, strategy, table, CLUSTER, batch=BATCH)
    own = program.ranks[0]
    forward_s = sum(costs.compute[item.id].seconds for item in own if item.kind in ("IN", "F"))
    (backward,) = (item for item in own if item.kind == "B")
    whole_s = costs.compute[backward.id].seconds
    (loss,) = (item for item in own if item.label == "loss")
    sent_s = forward_s + costs.transfers[loss.id].latency_s + costs.transfers[loss.id].flow_s
    now_s, passed, before = forward_s, 0.0, ""
    come_s: dict[str, float] = {}

    def send(bucket: str, transfer: Transfer) -> None:
        nonlocal sent_s
        sent_s = come_s[bucket] = max(sent_s, now_s) + transfer.latency_s + transfer.flow_s

    buckets = [item for item in own if item.label.startswith("b")]
    for item in buckets:
        if before in costs.second_rounds:
            pause, second = (costs.marks[backward.id, f"{item.label} {name}"] for name in ("pause", "second"))
            now_s = max(now_s + (pause - passed) * whole_s, come_s[before]) + (second - pause) * whole_s
            passed = second
            send(before, costs.second_rounds[before].transfer)
        mark = costs.marks[backward.id, item.label]
        now_s, passed = now_s + (mark - passed) * whole_s, mark
        send(item.id, costs.transfers[item.id])
        before = item.id
    backward_end_s = now_s = now_s + (1.0 - passed) * whole_s
    if before in costs.second_rounds:
        now_s = max(now_s, come_s[before]) + costs.second_rounds[before].between.seconds
        send(before, costs.second_rounds[before].transfer)
    for item in buckets:
        decode = costs.decoding.get(item.id)
        if decode is not None:
            now_s = max(now_s, come_s[item.id]) + decode.seconds
    return max(now_s, sent_s) - backward_end_s


def _priced(graph: Graph, table: CostTable) -> PricedJob:
    return PricedJob(graph=graph, table=table, cluster=CLUSTER, batch=BATCH)


@given(cases())
def test_what_is_exposed_is_what_a_replay_of_the_buckets_says(case: tuple[Graph, CostTable, Strategy]) -> None:
    graph, table, strategy = case
    found = exposed_s(evaluate(strategy, _priced(graph, table)))
    assert found == pytest.approx(replayed_s(graph, table, strategy), rel=1e-9, abs=1e-12)


@given(cases(), st.floats(0.1, 1.0))
def test_fewer_bytes_on_the_wire_never_lengthen_a_step(case: tuple[Graph, CostTable, Strategy], factor: float) -> None:
    """The same curve, each point for more bytes, is never higher."""
    graph, table, strategy = case
    key = builders.curve_key("AR", 2)
    faster = tuple((math.ceil(size / factor), cost) for size, cost in table.curves[key])
    quick = dataclasses.replace(table, curves={**table.curves, key: faster})
    before, after = (evaluate(strategy, _priced(graph, one)).step_time_s for one in (table, quick))
    assert after <= before * (1 + 1e-9)
