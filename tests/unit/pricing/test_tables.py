import dataclasses

from tests import builders
from tests.builders import HERE, exact, network, table_for
from tests.raising import raises

from trimaran.pricing.tables import merge
from trimaran.pricing.types import OpCost


def _operation(seconds: float) -> OpCost:
    return builders.op_cost(forward=exact(seconds), backward=exact(2 * seconds))


def test_merging_keeps_what_either_knows_and_believes_the_later() -> None:
    """Batch 4 only in the first, 16 only in the second, 8 in both."""
    key = builders.operation_key("conv")
    first = builders.cost_table(operations={key: {4: _operation(1.0), 8: _operation(2.0)}})
    second = builders.cost_table(operations={key: {8: _operation(3.0), 16: _operation(4.0)}})
    merged = merge([first, second])
    assert {batch: cost.forward.seconds for batch, cost in merged.operations[key].items()} == {4: 1.0, 8: 3.0, 16: 4.0}


def test_tables_of_different_machines_are_not_merged() -> None:
    there = builders.cost_table(fingerprint=dataclasses.replace(HERE, ranks=4))
    with raises("cost-table.other-machine", match=r"\b2\b.*\b4\b"):
        merge([builders.cost_table(), there])


def test_merging_nothing_is_refused() -> None:
    with raises("cost-table.nothing-to-merge"):
        merge([])


def test_an_operation_that_was_not_measured_compiled_has_its_eager_cost() -> None:
    graph = network()
    table = table_for(graph)
    compiled, eager = (table.operation("content of op0", 8, execution) for execution in ("compiled", "eager"))
    assert compiled == eager
    assert compiled is not None


def test_what_was_never_measured_is_none() -> None:
    table = table_for(network())
    assert table.operation("something else", 8, "eager") is None
    assert table.whole(builders.whole_key("another graph", "module"), 8) is None


def test_an_update_of_nothing_takes_no_time() -> None:
    fit = builders.tensor_fit(fixed_s=1.0, per_tensor_s=1.0, per_byte_s=1.0, low=0.5, high=2.0, source="example")
    assert fit.at(tensors=0, nbytes=0).seconds == 0.0


def test_merging_keeps_curves_steps_and_factors_of_both() -> None:
    graph = network()
    full = table_for(graph, whole_s=1.0)
    empty = builders.cost_table()
    assert merge([full, empty]) == merge([empty, full]) == full
    assert builders.curve_key("AR", 2) in full.curves
