"""Why a transformer is not divided in another way."""

import pytest
from tests import builders
from tests.raising import raises
from tests.unit.planner.parallel_degrees.test_division_search import LLAMA, WIDE

from trimaran.machine.find import find_machine
from trimaran.planner.contrast import binding
from trimaran.planner.parallel_degrees.explain import contrast, dissect_division, explain_division, read_kind
from trimaran.planner.parallel_degrees.search import search_divisions

MACHINE = find_machine("dgx-a100:2")


def test_the_parts_that_are_longer_are_named() -> None:
    found = search_divisions(WIDE, MACHINE, batch=32)
    answer = contrast(found, read_kind("tp8-pp2"))
    assert answer.other is not None
    assert answer.other.candidate.name.startswith("tp8 x pp2")
    assert answer.other.candidate.step_time_s > found.chosen.seconds
    before = dissect_division(found.chosen).parts
    more = {part: seconds - before[part] for part, seconds in answer.other.parts.items()}
    assert f"slower than {found.chosen.name}" in answer.conclusion
    assert f"more {max(more, key=lambda part: more[part])}" in answer.conclusion


def test_what_does_not_fit_says_what_it_needs() -> None:
    found = search_divisions(LLAMA, find_machine("dgx-h100:8"), batch=64)
    answer = contrast(found, read_kind("DDP"))
    assert answer.other is None
    assert "DDP is not to be had" in answer.conclusion
    assert "needs" in answer.conclusion


def test_what_is_faster_than_a_pinned_plan_is_said_to_be() -> None:
    """A plan that was made to have 16 stages is not the best; its kind does not become so by being asked about."""
    pinned = search_divisions(WIDE, MACHINE, batch=32, pins=builders.pins_of_degrees(pipeline=16))
    answer = contrast(pinned, read_kind("tp"))
    assert answer.other is not None
    assert answer.other.candidate.step_time_s < pinned.chosen.seconds
    assert "% faster" in answer.conclusion
    assert "what you decided is against it" in answer.conclusion


def test_the_plan_itself_is_recognized() -> None:
    found = search_divisions(WIDE, MACHINE, batch=32)
    answer = contrast(found, read_kind(f"dp{found.chosen.division.dp}-tp{found.chosen.division.tp}"))
    assert "is the plan, and the best of" in answer.conclusion


@pytest.mark.parametrize("name", ["magic", "tp0", "tp8 pp4", "placement", "zero4", "", "tp8-", "tp2-tp4"])
def test_a_kind_that_means_nothing_is_refused_with_those_that_do(name: str) -> None:
    with raises("why-not.unknown-degrees"):
        read_kind(name)


def test_what_binds_is_the_largest_part() -> None:
    chosen = search_divisions(WIDE, MACHINE, batch=32).chosen
    anatomy = dissect_division(chosen)
    assert sum(anatomy.parts.values()) == pytest.approx(chosen.seconds)
    assert binding(anatomy).startswith(max(anatomy.parts, key=lambda part: anatomy.parts[part]))


def test_the_fastest_needs_no_rule_and_a_pinned_one_says_that_it_is_pinned() -> None:
    free = search_divisions(WIDE, MACHINE, batch=32)
    assert not explain_division(free).rule
    pinned = search_divisions(WIDE, MACHINE, batch=32, pins=builders.pins_of_degrees(pipeline=16))
    assert "what you decided is against it" in explain_division(pinned).rule
