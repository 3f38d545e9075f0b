"""An explanation on a terminal of 80 columns; the figures are those of `tests/unit/planner/problems.py`."""

import io

from rich.console import Console, RenderableType
from tests.unit.planner.problems import problem

from trimaran.cli.explanation_views import contrast_table, outcome_table, parts_table, rival_table
from trimaran.planner.changes import parse_change
from trimaran.planner.explain import Explanation, explain
from trimaran.planner.families import read_family
from trimaran.planner.problem import solve


def explanation() -> Explanation:
    given = problem()
    changes = [parse_change(text) for text in ("compute=x2", "memory=300B", "link=1kb/s")]
    return explain(given, solve(given), why_not=[read_family("pp2-gpipe-m2")], changes=changes)


def shown(*what: RenderableType) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=80).print(*what)
    lines = text.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "…" not in text.getvalue()
    return lines


def row(lines: list[str], first: str) -> list[str]:
    return next(line.split() for line in lines if line.startswith(first))


def test_the_parts_of_a_step_are_shown_with_their_shares() -> None:
    """32 of 60.0 ms."""
    assert row(shown(parts_table(explanation().chosen)), "backward")[1:5] == ["32.0", "ms", "53.3", "%"]


def test_two_plans_are_shown_class_by_class() -> None:
    found = explanation()
    other = found.contrasts[0].other
    assert other is not None
    lines = shown(contrast_table(found.chosen, other))
    assert row(lines, "exchange") == ["exchange", "10.0", "ms", "0", "s", "−10.0", "ms"]
    assert row(lines, "bubble")[-2:] == ["+12.0", "ms"]


def test_rivals_are_shown_with_how_sure_it_is() -> None:
    lines = shown(rival_table(explanation().rivals))
    assert row(lines, "one device")[2:6] == ["98.5", "ms", "+64", "%"]
    assert row(lines, "one device")[-1] == "slower"


def test_changes_are_shown_with_what_would_then_be_chosen() -> None:
    lines = shown(outcome_table(explanation().outcomes))
    assert row(lines, "compute × 2")[-1] == "="
    assert "pp2" in row(lines, "memory: 300 B")
    assert "one" in row(lines, "links: 1 kb/s")
