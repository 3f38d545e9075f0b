import dataclasses

import pytest
from tests import builders
from tests.builders import exact, network, table_for
from tests.raising import raises

from trimaran.graph.types import Graph
from trimaran.pricing.compute import context_of, form_of, operation_costs, operation_seconds, segment_cost
from trimaran.pricing.tables import CostTable, Form
from trimaran.program.strategy import Strategy

# Operations of network(4) at a batch of 8: forwards of 8, 16, 24, 32 ms and 8 ms for the loss, 88 ms together.
FORWARD_S = 0.088


def _segments(graph: Graph, table: CostTable, *boundaries: str, batch: int = 8, form: Form = "module") -> list[float]:
    costs = operation_costs(graph, table, batch=batch, execution="eager")
    context = context_of(graph, table, costs, batch=batch, form=form, execution="eager")
    return [segment_cost(ops, costs, context).forward.seconds for ops in graph.parts(boundaries)]


def test_without_a_measurement_of_the_whole_a_segment_is_the_sum_of_its_operations() -> None:
    graph = network(4)
    assert _segments(graph, table_for(graph), "op1") == pytest.approx([0.024, 0.064])


def test_the_whole_model_costs_what_was_measured_of_it() -> None:
    graph = network(4)
    assert _segments(graph, table_for(graph, whole_s=0.176)) == pytest.approx([0.176])


def test_parts_share_the_whole_in_proportion_to_their_operations() -> None:
    """The whole takes twice the sum of 88 ms, so 24 ms and 64 ms become 48 ms and 128 ms."""
    graph = network(4)
    assert _segments(graph, table_for(graph, whole_s=2 * FORWARD_S), "op1") == pytest.approx([0.048, 0.128])


def test_a_form_that_was_not_measured_is_like_one_that_was() -> None:
    graph = network(4)
    table = table_for(graph)
    whole = builders.whole_cost(forward=exact(0.176), backward=exact(0.352), evaluation=exact(0.1))
    table = dataclasses.replace(table, wholes={builders.whole_key(graph.digest, "module"): {8: whole}})
    assert _segments(graph, table, form="graph") == pytest.approx([0.176])


def test_operations_err_alone_and_the_context_for_all() -> None:
    """Forwards of 8, 16, 24, 32 and 8 ms, each known to half: half-width sqrt(4² + 8² + 12² + 16² + 4²) = 22.3 ms."""
    graph = network(4)
    table = table_for(graph, whole_s=FORWARD_S, part=0.5)
    costs = operation_costs(graph, table, batch=8, execution="eager")
    context = context_of(graph, table, costs, batch=8, form="module", execution="eager")
    forward = segment_cost(graph.ops, costs, context).forward
    assert forward.high - forward.seconds == pytest.approx(1e-3 * (4**2 + 8**2 + 12**2 + 16**2 + 4**2) ** 0.5)


def test_the_backward_passes_operations_last_to_first() -> None:
    """Backwards of 16, 32, 48, 64 ms and 16 ms for the loss, 176 in all: after the loss 16 are done, after op3 80."""
    graph = network(4)
    table = table_for(graph)
    costs = operation_costs(graph, table, batch=8, execution="eager")
    context = context_of(graph, table, costs, batch=8, form="module", execution="eager")
    reached = segment_cost(graph.ops, costs, context).reached
    assert reached["loss"] == pytest.approx(16 / 176)
    assert reached["op3"] == pytest.approx(80 / 176)
    assert reached["op0"] == 1.0


def test_where_no_backward_takes_time_marks_are_evenly_spread() -> None:
    graph = network(3)
    table = table_for(graph)
    costs = operation_costs(graph, table, batch=8, execution="eager")
    free = {name: dataclasses.replace(cost, backward=exact(0.0)) for name, cost in costs.items()}
    context = context_of(graph, table, free, batch=8, form="module", execution="eager")
    reached = segment_cost(graph.ops, free, context).reached
    assert [reached[name] for name in ("loss", "op2", "op1", "op0")] == [0.25, 0.5, 0.75, 1.0]


def test_seconds_of_operations_add_up_to_the_whole() -> None:
    """Forward 176 ms and backward 352 ms in one piece."""
    graph = network(4)
    seconds = operation_seconds(graph, table_for(graph, whole_s=0.176), batch=8, execution="eager")
    assert sum(seconds.values()) == pytest.approx(0.528)
    assert seconds["op3"] == pytest.approx(4 * seconds["op0"])


def test_an_operation_that_nobody_measured_is_named() -> None:
    graph = network(4)
    stranger = dataclasses.replace(graph.ops[2], content="strange")
    strange = dataclasses.replace(graph, ops=(*graph.ops[:2], stranger, *graph.ops[3:]))
    with raises("cost-table.missing-operation", op="op2"):
        operation_costs(strange, table_for(graph), batch=8, execution="eager")


@pytest.mark.parametrize(
    ("strategy", "form"),
    [
        (builders.strategy(), "module"),
        (builders.strategy(dp=2), "replicated"),
        (builders.strategy(pp=2, boundaries=("op1",)), "graph"),
        (builders.strategy(dp=2, pp=2, boundaries=("op1",)), "graph"),
    ],
)
def test_the_strategy_says_how_the_model_runs(strategy: Strategy, form: str) -> None:
    assert form_of(strategy) == form


def test_a_share_of_an_operation_starts_as_many_kernels() -> None:
    """Of 10 ms, 4 are launches: a quarter takes 4 + 6 / 4 = 5.5 ms."""
    graph = network(1)
    ops = graph.ops[:1]
    cost = builders.op_cost(forward=exact(0.010), backward=exact(0.010), launches=0.4)
    costs = {op.id: cost for op in graph.ops}
    context = context_of(graph, table_for(graph), costs, batch=8, form="module", execution="eager")
    found = segment_cost(ops, costs, context, shares=lambda op: 0.25)
    assert found.forward.seconds == pytest.approx(0.0055)
