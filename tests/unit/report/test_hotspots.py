"""Where the compute of a hand-made job goes; the figures are those of `tests/builders.py`."""

import dataclasses

import pytest
from tests import builders
from tests.builders import exact, network, table_for

from trimaran.graph.types import Affine, Graph
from trimaran.pricing.tables import CostTable
from trimaran.pricing.types import Cost, OpCost
from trimaran.report.profile import Grouping, Hotspot, Overhead, find_spots


def spots(graph: Graph, table: CostTable, by: Grouping = "operation", *, batch: int = 8) -> dict[str, Hotspot]:
    found, _ = find_spots(graph, table, batch=batch, form="module", by=by)
    return {spot.name: spot for spot in found}


def overhead(graph: Graph, table: CostTable, *, batch: int = 8) -> Overhead:
    return find_spots(graph, table, batch=batch, form="module", by="operation")[1]


def test_the_most_expensive_comes_first() -> None:
    """Layers of 1 to 4 ms a sample; the loss 1 ms, and after op0 by its name."""
    graph = network(4)
    found, _ = find_spots(graph, table_for(graph), batch=8, form="module", by="operation")
    assert [spot.name for spot in found] == ["op3", "op2", "op1", "loss", "op0"]
    assert found[0].forward.seconds == pytest.approx(8 * 4e-3)
    assert found[0].backward.seconds == pytest.approx(8 * 8e-3)
    assert (found[0].parameters, found[0].saved_bytes) == (12, 8 * 4)


def test_operations_share_what_the_whole_model_takes() -> None:
    """Forwards of 8 · 11 ms alone; the whole takes 44 ms, half of that: so does each."""
    graph = network(4)
    found = spots(graph, table_for(graph, whole_s=44e-3))
    assert found["op3"].forward.seconds == pytest.approx(8 * 2e-3)
    assert sum(spot.forward.seconds for spot in found.values()) == pytest.approx(44e-3)
    assert overhead(graph, table_for(graph, whole_s=44e-3)).forward.seconds == pytest.approx(0.5)


def test_a_kind_stands_for_all_its_operations() -> None:
    graph = network(4)
    found = spots(graph, table_for(graph), "kind")
    assert (found["Linear"].operations, found["loss"].operations) == (4, 1)
    assert found["Linear"].forward.seconds == pytest.approx(8 * 10e-3)
    assert found["Linear"].parameters == 4 * 12


def test_what_belongs_to_no_module_is_the_models_own() -> None:
    graph = network(2)
    first, *rest = graph.ops
    graph = dataclasses.replace(graph, ops=(dataclasses.replace(first, module="features.0"), *rest))
    assert set(spots(graph, table_for(graph), "module")) == {"features.0", "(model)", "(loss)"}


def test_rates_are_what_is_reached() -> None:
    """8 samples of 3,000 + 6,000 FLOP in 8 · 3 ms."""
    graph = network(1)
    op, loss = graph.ops
    op = dataclasses.replace(op, flops=Affine(0.0, 3000.0), backward_flops=Affine(0.0, 6000.0))
    graph = dataclasses.replace(graph, ops=(op, loss))
    assert spots(graph, table_for(graph))["op0"].flops_per_s == pytest.approx(3e6)


def test_a_group_is_as_well_known_as_its_worst_member() -> None:
    graph = network(2)
    table = table_for(graph)
    guessed = Cost(1e-3, 1e-3, 1e-3, "assumed: not run by itself")
    key = builders.operation_key("content of op1")
    operations = {**table.operations, key: {8: builders.op_cost(forward=guessed, backward=guessed)}}
    found = spots(graph, dataclasses.replace(table, operations=operations), "kind")
    assert found["Linear"].forward.source == "assumed: not run by itself"
    assert found["loss"].forward.source == "measured: by hand"


def calls(graph: Graph, table: CostTable, fixed: dict[str, float], per_sample: dict[str, float]) -> CostTable:
    """Operations that take a fixed time and so much a sample, a third of it forward [ms]."""

    def cost(name: str, batch: int) -> OpCost:
        seconds = (fixed[name] + per_sample[name] * batch) * 1e-3
        return builders.op_cost(forward=exact(seconds / 3), backward=exact(seconds * 2 / 3))

    operations = {
        builders.operation_key(op.content): {batch: cost(op.id, batch) for batch in (4, 8)} for op in graph.ops
    }
    return dataclasses.replace(table, operations=operations)


def working(graph: Graph, flops: dict[str, float]) -> Graph:
    ops = tuple(dataclasses.replace(op, flops=Affine(0.0, flops[op.id])) for op in graph.ops)
    return dataclasses.replace(graph, ops=ops)


def test_many_operations_that_cost_their_call_bind_a_job() -> None:
    """Batch 8. op0: 0.8 ms, all of it per sample, 800 FLOP. op1 and the loss: 1 ms each, 0.9 of it fixed, 8 FLOP.

    Two of three operations are small, with 2 of 2.8 ms; 1.8 of 2.8 ms does not depend on the batch.
    """
    graph = working(network(2), {"op0": 100.0, "op1": 1.0, "loss": 1.0})
    fixed = {"op0": 0.0, "op1": 0.9, "loss": 0.9}
    table = calls(graph, table_for(graph), fixed, {"op0": 0.1, "op1": 0.0125, "loss": 0.0125})
    found = overhead(graph, table)
    assert found.small == 2
    assert found.small_share == pytest.approx(2.0 / 2.8)
    assert found.fixed_share == pytest.approx(1.8 / 2.8)
    assert found.is_bound_by_small_operations


def test_an_operation_that_reaches_a_good_rate_is_not_small() -> None:
    """As before, but op1 computes as fast as op0: a large weight costs the same for any batch."""
    graph = working(network(2), {"op0": 100.0, "op1": 125.0, "loss": 1.0})
    fixed = {"op0": 0.0, "op1": 0.9, "loss": 0.9}
    table = calls(graph, table_for(graph), fixed, {"op0": 0.1, "op1": 0.0125, "loss": 0.0125})
    found = overhead(graph, table)
    assert found.small == 1
    assert not found.is_bound_by_small_operations


def test_one_batch_size_says_nothing_of_calls() -> None:
    graph = network(1)
    table = table_for(graph)
    operations = {key: {8: points[8]} for key, points in table.operations.items()}
    found = overhead(graph, dataclasses.replace(table, operations=operations))
    assert (found.small, found.small_share, found.fixed_share) == (None, None, None)
    assert not found.is_bound_by_small_operations
