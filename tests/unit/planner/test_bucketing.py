"""Sizes of buckets that a search finds beside those of the space.

Sixteen layers of 64 KiB each; layer i takes (i + 1) ms a sample forward, twice that backward.
"""

import dataclasses

import pytest
from tests import builders
from tests.builders import exact, network, table_for
from tests.graphs import parameter

from trimaran.graph.types import Graph
from trimaran.planner.candidates import Candidate, evaluate
from trimaran.planner.problem import Problem
from trimaran.planner.search import exposed_s, search
from trimaran.planner.space import bucket_ladder, bucket_sizes

KIB = 2**10
LAYERS = 16


def _graph() -> Graph:
    graph = network(LAYERS)
    ops = tuple(dataclasses.replace(op, parameters=op.parameters[:1]) for op in graph.ops)
    parameters = tuple(parameter(f"op{number}.weight", 64 * KIB) for number in range(LAYERS))
    return dataclasses.replace(graph, ops=ops, parameters=parameters)


GRAPH = _graph()


def _problem(*, latency_s: float, bytes_per_s: float) -> Problem:
    sizes = (16, *(64 * KIB << power for power in range(5)))
    reduce = tuple((size, exact(latency_s + size / bytes_per_s)) for size in sizes)
    curves = {
        builders.curve_key("AR", 2): reduce,
        builders.curve_key("SEND", 2): ((1, exact(10.0)),),
        builders.curve_key("BC", 2): reduce,
    }
    table = dataclasses.replace(table_for(GRAPH), curves=curves, interference={})
    return builders.problem(graph=GRAPH, table=table)


def _at(given: Problem, size: int) -> Candidate:
    strategy = builders.strategy(dp=2, bucket_bytes=size)
    return evaluate(strategy, given)


def test_the_ladder_has_every_power_of_two_that_makes_other_buckets() -> None:
    """A layer has 64 KiB: smaller buckets hold one each, as 64 KiB do; 1 MiB and more hold all."""
    assert bucket_ladder(GRAPH) == (32 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, 25 * 2**20)
    assert set(bucket_sizes(GRAPH)) <= {*bucket_ladder(GRAPH), 2**17}


def test_a_size_between_those_of_the_space_is_found_where_a_step_waits_for_gradients() -> None:
    """All gradients take 1 s on the wire, a call 0.1 s, a backward 1.1 s.

    Calls of 4 layers leave 776 ms exposed, those of 2 and of 8 take 960 and 912 ms, all at once 1,100 ms.
    """
    given = _problem(latency_s=0.1, bytes_per_s=LAYERS * 64.0 * KIB)
    found = search(given)
    plain = [
        one
        for one in found.candidates
        if one.strategy == builders.strategy(dp=2, bucket_bytes=one.strategy.bucket_bytes)
    ]
    best = min(plain, key=lambda one: one.step_time_s)
    assert best.strategy.bucket_bytes == 256 * KIB
    assert best.strategy.bucket_bytes not in bucket_sizes(GRAPH)
    assert exposed_s(best) == pytest.approx(0.776, abs=1e-6)
    every = [_at(given, size).step_time_s for size in bucket_ladder(GRAPH)]
    assert best.step_time_s == pytest.approx(min(every))
    assert found.chosen is best


def test_where_nothing_waits_no_further_size_is_tried() -> None:
    given = _problem(latency_s=1e-6, bytes_per_s=1e12)
    sizes = {one.strategy.bucket_bytes for one in search(given).candidates}
    assert sizes <= set(bucket_sizes(GRAPH))


def test_what_is_exposed_is_the_time_between_backward_and_update() -> None:
    """One bucket of 1 MiB at 1 GiB/s, after the backward: a 1024th of a second and a millisecond of latency."""
    given = _problem(latency_s=1e-3, bytes_per_s=2.0**30)
    whole = _at(given, 25 * 2**20)
    assert exposed_s(whole) == pytest.approx(1e-3 + 2.0**-10, rel=1e-6)
