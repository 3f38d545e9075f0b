"""What a search found, as documents have it."""

import dataclasses

import pytest
from tests import builders
from tests.builders import problem
from tests.graphs import chain

from trimaran.graph.types import Graph
from trimaran.planner.search import PinPrice, prices, search
from trimaran.planner.trials import Trials
from trimaran.planning.answer.documents import one_device, placement_document, search_document
from trimaran.planning.best_strategy import chooser
from trimaran.program.strategy import Part


def modules(*paths: str) -> Graph:
    graph = chain(len(paths))
    ops = tuple(dataclasses.replace(op, module=path) for op, path in zip(graph.ops, (*paths, ""), strict=True))
    return dataclasses.replace(graph, ops=ops)


def test_a_module_that_runs_on_one_row_is_one_entry() -> None:
    graph = modules("stem", "mixed.left", "mixed.right")
    strategy = builders.strategy(
        pp=2, parts=(Part(ops=("op0", "op1"), row=0), Part(ops=("op2",), row=1), Part(ops=("loss",), row=0))
    )
    assert placement_document(graph, strategy) == {"stem": 0, "mixed.left": 0, "mixed.right": 1, "loss": 0}
    assert placement_document(graph, builders.strategy(dp=2)) == {"stem": 0, "mixed": 0, "loss": 0}


def test_the_document_has_what_was_searched_and_what_pins_cost() -> None:
    given = dataclasses.replace(problem(), pins=builders.pins(forbid=("dp",)))
    trials = Trials(given)
    found = search(given, trials)
    document = search_document(found, prices=prices(given, found, chooser(builders.no_steps, trials)))
    assert document["pins"][0]["pin"] == "--forbid dp"
    assert document["pins"][0]["price"] > 0
    assert {"one device", "data parallelism", "rule of thumb"} <= {entry["role"] for entry in document["references"]}
    assert sum(document["rejected_counts"].values()) == len(found.rejected)
    assert document["search"]["is_complete"]
    assert len(document["runners_up"]) == len(found.candidates) - 1


def test_a_price_that_counts_the_samples_to_the_target_says_so() -> None:
    """Half as long again to the target is not half as long again a step: a reader of the figures must know which."""
    found = search(problem())
    paid = [
        PinPrice(pin="--compress none", without=found.chosen, price=0.5, to_target=True),
        PinPrice(pin="--dp 2", without=found.chosen, price=0.5),
    ]
    assert [entry["to_target"] for entry in search_document(found, prices=paid)["pins"]] == [True, False]


def test_one_device_is_one_of_the_candidates() -> None:
    assert one_device(search(problem())) == pytest.approx(98.5e-3, rel=1e-3)
