"""A stale schedule in a search: by its name only, priced as it runs, and labelled."""

import pytest
from tests import builders
from tests.raising import raises

from trimaran.planner.explanation.contrast import dissect
from trimaran.planner.pins import NO_PINS, Pins, parse_pins
from trimaran.planner.problem import Problem, assess
from trimaran.planner.search import search
from trimaran.program.strategy import Strategy, read_strategy, strategy_legend
from trimaran.report.breakdown import utilization

STALE = builders.strategy(pp=2, schedule="pipedream")
FLUSHED = builders.strategy(pp=2, schedule="1f1b", microbatches=2)


def problem(pins: Pins = NO_PINS) -> Problem:
    """A pipeline pays: gradients of replicas take half a second."""
    return builders.problem(
        graph=builders.network(4), pins=pins, all_reduce=builders.of_gradients(0.5), message=builders.flat(1e-6)
    )


def strategies(pins: Pins) -> list[Strategy]:
    found = search(problem(pins))
    return [one.strategy for one in found.candidates] + [one.strategy for one in found.rejected]


@pytest.mark.parametrize("pins", [NO_PINS, Pins(pp=2), Pins(allow=("pp",)), Pins(forbid=("stale",))])
def test_nothing_stale_is_considered_without_opt_in(pins: Pins) -> None:
    assert not any(one.is_stale for one in strategies(pins))


@pytest.mark.parametrize("pins", [Pins(schedule="pipedream"), parse_pins(allow=["stale"]), Pins(stale=True, pp=2)])
def test_it_is_considered_where_it_is_named(pins: Pins) -> None:
    assert any(one.is_stale for one in strategies(pins))


def test_a_pinned_one_is_chosen_and_says_what_it_is() -> None:
    chosen = search(problem(Pins(schedule="pipedream"))).chosen
    assert chosen.strategy.is_stale
    assert chosen.name == "pp2 pipedream stale"
    assert read_strategy(chosen.name).is_stale
    assert "stale: not the training of one process" in strategy_legend([chosen.name])
    assert "stale" not in strategy_legend(["pp2 1f1b m2"])


def test_of_equal_time_the_synchronous_one_is_chosen() -> None:
    found = search(problem(parse_pins(allow=["stale"], pp=2)))
    assert found.chosen.objective_s <= min(one.objective_s for one in found.candidates) * 1.03
    assert Pins(schedule="pipedream").objection(FLUSHED)
    assert NO_PINS.objection(STALE) == "the lack of --allow stale"


def test_pins_that_contradict_it_are_named() -> None:
    assert "conflicts with --dp 2" in Pins(schedule="pipedream", dp=2).conflict(8)
    assert "conflicts with --microbatches 4" in Pins(schedule="pipedream", microbatches=4).conflict(4)
    assert "conflicts with --forbid stale" in Pins(schedule="pipedream", forbid=("stale",)).conflict(4)
    with raises("strategy.not-stale"):
        read_strategy("pp2 1f1b stale")


def test_a_step_takes_what_the_slowest_stage_takes() -> None:
    """Stages of 24, 48 and of 96 and 24 ms, an update, a load: the second stage has the period, the first one waits."""
    given = problem(Pins(schedule="pipedream"))
    found = assess(STALE, given)
    flushed = assess(builders.strategy(pp=2, schedule="1f1b", microbatches=1), given)
    shares = utilization(found.program, found.timeline)
    assert max(one.busy for one in shares) == pytest.approx(1.0, abs=1e-4)
    assert max(one.busy_s for one in shares) == pytest.approx(found.step_time_s, rel=1e-4)
    assert found.step_time_s < 0.7 * flushed.step_time_s
    anatomy = dissect(found, given)
    assert sum(anatomy.parts.values()) == pytest.approx(found.step_time_s, rel=1e-6)
    assert anatomy.parts["bubble"] == pytest.approx(0.0, abs=1e-6)
    assert "compute" in found.limiter


def test_memory_has_earlier_weights_and_the_passes_under_way() -> None:
    given = problem(Pins(schedule="pipedream"))
    graph = given.graph
    found = assess(STALE, given)
    alone = assess(builders.strategy(pp=2, schedule="1f1b", microbatches=1), given)
    first = {op.id for op in graph.ops[: [op.id for op in graph.ops].index(found.strategy.boundaries[0]) + 1]}
    weights = sum(
        parameter.nbytes
        for parameter in graph.parameters
        if any(parameter.name in op.parameters for op in graph.ops if op.id in first)
    )
    # One version more, one pass more, and one message that was posted a step ahead at most.
    kept = found.peak_bytes[0] - alone.peak_bytes[0] - weights
    assert weights > 0
    assert kept > 0
    assert found.peak_bytes[1] - alone.peak_bytes[1] < weights + kept
