"""Why the degrees of a transformer are what they are."""

import pytest
from tests import builders
from tests.raising import raises
from tests.unit.planner.analytical.test_search import LLAMA, WIDE

from trimaran.machine.find import find_machine
from trimaran.planner.analytical.search import search_degrees, transformer_problem
from trimaran.planner.explanation.contrast import binding
from trimaran.planner.explanation.explain import AnalyticalCase, Explanation, explain, pins_of_kind
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.pricing.analytical.shapes import TransformerShape


def explained(
    shape: TransformerShape = WIDE, machine: str = "dgx-a100:2", *why_not: str, batch: int = 32, pins: Pins = NO_PINS
) -> Explanation:
    problem = transformer_problem(shape, find_machine(machine), batch=batch, pins=pins)
    kinds = [(name, pins_of_kind(name)) for name in why_not]
    return explain(AnalyticalCase(problem=problem, found=search_degrees(problem), why_not=kinds))


def test_the_parts_that_are_longer_are_named() -> None:
    found = explained(WIDE, "dgx-a100:2", "tp8-pp2")
    answer, chosen = found.contrasts[0], found.chosen
    assert answer.other is not None
    assert answer.other.candidate.strategy.tp == 8
    assert answer.other.candidate.strategy.pp == 2
    assert answer.other.candidate.step_time_s > chosen.candidate.step_time_s
    more = {part: seconds - chosen.parts[part] for part, seconds in answer.other.parts.items()}
    assert f"slower than {chosen.candidate.name}" in answer.conclusion
    assert f"more {max(more, key=lambda part: more[part])}" in answer.conclusion


def test_what_does_not_fit_says_what_it_needs() -> None:
    answer = explained(LLAMA, "dgx-h100:8", "DDP", batch=64).contrasts[0]
    assert answer.other is None
    assert "DDP cannot be run" in answer.conclusion
    assert "needs" in answer.conclusion


def test_what_is_faster_than_a_pinned_plan_is_said_to_be() -> None:
    """A plan that was made to have 16 stages is not the best; its kind does not become so by being asked about."""
    pinned = explained(WIDE, "dgx-a100:2", "tp", pins=builders.pins_of_degrees(pipeline=16))
    answer = pinned.contrasts[0]
    assert answer.other is not None
    assert answer.other.candidate.step_time_s < pinned.chosen.candidate.step_time_s
    assert "% faster" in answer.conclusion
    assert "ruled out by your options" in answer.conclusion


def test_the_plan_itself_is_recognized() -> None:
    chosen = explained().chosen.candidate.strategy
    answer = explained(WIDE, "dgx-a100:2", f"dp{chosen.dp}-tp{chosen.tp}").contrasts[0]
    assert "is the plan, and the best of" in answer.conclusion


@pytest.mark.parametrize("name", ["magic", "tp0", "placement", "zero4", "", "tp8-", "tp2-tp4", "tp2 tp4"])
def test_a_kind_that_means_nothing_is_refused_with_those_that_do(name: str) -> None:
    with raises("why-not.unknown-degrees"):
        pins_of_kind(name)


@pytest.mark.parametrize("name", ["dp2 tp8 zero1", "dp2 pp8 1f1b zero1 m16 mb1"])
def test_a_strategy_is_asked_about_as_plans_print_it(name: str) -> None:
    answer = explained(WIDE, "dgx-a100:2", name).contrasts[0]
    assert answer.other is not None
    assert name.removesuffix(" m16 mb1") in answer.other.candidate.name
    with raises("strategy.unknown-word"):
        pins_of_kind(f"{name} magic")


def test_what_binds_is_the_largest_part() -> None:
    anatomy = explained().chosen
    assert sum(anatomy.parts.values()) == pytest.approx(anatomy.candidate.step_time_s)
    largest = max(anatomy.candidate.parts.items(), key=lambda entry: entry[1])[0]
    assert binding(anatomy.candidate).startswith(f"limited by {largest}: ")
    assert anatomy.candidate.limiter.startswith(largest)


def test_the_fastest_needs_no_rule_and_a_pinned_one_says_that_it_is_pinned() -> None:
    assert not explained().rule
    assert "ruled out by your options" in explained(pins=builders.pins_of_degrees(pipeline=16)).rule
