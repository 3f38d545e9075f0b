from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from tests.raising import raises

from trimaran.base.remedies import CATALOGUE, Remedy, rank_remedies
from trimaran.program.json_files import to_plain
from trimaran.report.remedies import remedies_view, remedy_table


def remedy(name: str, gain: float, low: float, high: float, **more: Any) -> Remedy:
    return Remedy(
        **{"id": "load-ahead", "method": "estimated"} | more,
        limiter="loader",
        name=name,
        action="Do this.",
        predicted_gain=gain,
        gain_interval=(low, high),
        basis="It was so long.",
        assumption="nothing else changes.",
    )


def test_the_largest_gain_comes_first_and_of_equal_ones_the_surer() -> None:
    given = [remedy("small", 0.1, 0.1, 0.1), remedy("unsure", 0.4, 0.0, 0.6), remedy("sure", 0.4, 0.3, 0.5)]
    assert [one.name for one in rank_remedies(given)] == ["sure", "unsure", "small"]


@pytest.mark.parametrize(("gain", "low", "high"), [(0.5, 0.6, 0.7), (0.5, 0.1, 0.4), (1.0, 0.5, 1.0)])
def test_a_gain_outside_of_its_interval_or_of_everything_is_refused(gain: float, low: float, high: float) -> None:
    with raises("remedy.bad-range", match=r"\b1\b"):
        remedy("wrong", gain, low, high)


def test_the_table_says_gain_interval_and_basis_within_80_columns() -> None:
    text = StringIO()
    Console(file=text, width=80).print(remedy_table([remedy("load in 2 workers", 0.421, 0.4, 0.45)]))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("load in 2 workers" in line and "42 %" in line and "40 % to 45 %" in line for line in lines)
    assert any("Do this. It was so long." in line for line in lines)


def test_an_interval_whose_ends_look_alike_is_one_figure() -> None:
    """In the table, and behind a figure that says the same not again."""
    text = StringIO()
    one, other = remedy("one", 0.421, 0.4205, 0.4215), remedy("other", 0.0141, 0.01409, 0.01411)
    Console(file=text, width=80).print(remedies_view([one], not_worth=[other]))
    assert " to " not in text.getvalue().partition("limiter: ")[0]
    assert "other: 1.4 %. " in text.getvalue()


def test_the_document_has_the_same_figures() -> None:
    document = to_plain(remedy("one", 0.4, 0.3, 0.5, at={"devices": 8}))
    assert document["gain_interval"] == [0.3, 0.5]
    assert document["at"] == {"devices": 8}
    assert document["actor"] == CATALOGUE["load-ahead"].actor


def test_a_remedy_that_is_not_in_the_catalogue_is_refused() -> None:
    with raises("remedy.unknown"):
        remedy("magic", 0.4, 0.3, 0.5, id="magic")


def test_what_a_remedy_needs_and_who_acts_is_said() -> None:
    text = StringIO()
    Console(file=text, width=80).print(remedy_table([remedy("load in 2 workers", 0.421, 0.4, 0.45)]))
    said = " ".join(text.getvalue().split())
    assert "an option of Trimaran" in said
    assert CATALOGUE["load-ahead"].needs in said


def test_a_script_that_does_not_run_by_trimaran_is_not_told_of_its_options() -> None:
    text = StringIO()
    view = remedies_view([remedy("load in 2 workers", 0.421, 0.4, 0.45)], of_script=True)
    Console(file=text, width=80).print(view)
    said = " ".join(text.getvalue().split())
    assert "option of Trimaran" not in said
    assert "By a change of the training script; needs" in said
