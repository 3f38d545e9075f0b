"""An explanation on a terminal of 80 columns; the figures are those of `tests/builders.py`."""

import dataclasses
import io

from rich.console import Console, RenderableType
from tests import builders
from tests.builders import problem

from trimaran.base.units import format_seconds
from trimaran.planner.epoch import EpochData
from trimaran.planner.explanation.critical_path import TimeClass
from trimaran.planner.explanation.explain import Explanation, SimulatedCase, explain, read_family
from trimaran.planner.explanation.what_if import parse_change
from trimaran.planner.problem import assess
from trimaran.planner.search import PinPrice, search
from trimaran.planner.space import Rejection
from trimaran.planning.answer.explained import _MEANINGS, alternative_table, contrast_table, outcome_table, parts_table
from trimaran.planning.answer.pages import print_notes, print_prices, print_rejections


def explanation() -> Explanation:
    given = problem()
    changes = [parse_change(text) for text in ("compute=x2", "memory=300B", "link=1kb/s")]
    return explain(
        SimulatedCase(problem=given, found=search(given), why_not=[read_family("pp2-gpipe-m2")], changes=changes)
    )


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
    lines = shown(alternative_table(explanation().alternatives, explanation().chosen.candidate))
    assert row(lines, "one device")[2:6] == ["98.5", "ms", "+64", "%"]
    assert row(lines, "one device")[-1] == "slower"


def test_changes_are_shown_with_what_would_then_be_chosen() -> None:
    lines = shown(outcome_table(explanation().outcomes))
    assert row(lines, "compute × 2")[-1] == "="
    assert {"dp2", "pp2"} & {*row(lines, "memory: 300 B")}
    assert "one" in row(lines, "links: 1 kb/s")


def test_a_faster_rival_of_a_given_plan_is_shown_as_such() -> None:
    given = problem()
    plan = assess(builders.strategy(pp=2, microbatches=2), given)
    found = explain(SimulatedCase(problem=given, found=search(given), changes=[]), chosen=plan)
    lines = shown(alternative_table(found.alternatives, plan))
    assert " ".join(row(lines, "dp2")[-3:]) == "faster: plan again"


def test_epochs_are_compared_where_they_are_made_best() -> None:
    """80 samples: 10 steps of 8, 98.5 ms each on one device."""
    given = dataclasses.replace(problem(), epoch=EpochData(samples=80, evaluation_samples=0, drop_last=True))
    found = explain(SimulatedCase(problem=given, found=search(given), changes=[parse_change("compute=x2")]))
    alternatives = shown(alternative_table(found.alternatives, found.chosen.candidate))
    assert "epoch" in row(alternatives, "strategy")
    assert row(alternatives, "one device")[2:4] == ["985", "ms"]
    chosen = found.chosen.candidate
    outcomes = shown(outcome_table(found.outcomes))
    assert row(outcomes, "change")[-1] == "epoch"
    kept = found.outcomes[0].kept
    assert kept is not None
    assert kept.epoch_s is not None
    assert kept.epoch_s < chosen.objective_s
    assert row(outcomes, "compute × 2")[3:5] == format_seconds(kept.epoch_s).split()


def test_a_reason_of_one_is_not_that_of_all() -> None:
    rejections = [
        Rejection(
            strategy=builders.strategy(dp=2, microbatches=count), cause="memory", reason=f"rank 0 needs {count} B"
        )
        for count in (1, 2)
    ]
    text = io.StringIO()
    print_rejections(Console(file=text, width=80), rejections, named=True)
    print_rejections(Console(file=text, width=80), rejections[:1], named=True)
    assert text.getvalue().splitlines() == [
        "rejected 2, such as dp2: rank 0 needs 1 B",
        "rejected dp2: rank 0 needs 1 B",
    ]


def test_brackets_of_a_note_are_no_markup() -> None:
    text = io.StringIO()
    print_notes(Console(file=text, width=80), ["the file [a]/b[/] is kept"])
    assert text.getvalue() == "note: the file [a]/b[/] is kept\n"


def test_percentages_that_count_samples_are_to_the_target() -> None:
    found = explanation()
    chosen = found.chosen.candidate
    lossy = dataclasses.replace(chosen, samples_factor=1.5)
    assert "to the target" not in "\n".join(shown(alternative_table(found.alternatives, chosen)))
    assert "to the target" in "\n".join(shown(alternative_table(found.alternatives, lossy)))
    outcome = dataclasses.replace(found.outcomes[0], kept=chosen, best=lossy)
    assert "to the target" in "\n".join(shown(outcome_table([outcome])))
    out = Console(file=io.StringIO(), width=80)
    print_prices(out, [PinPrice(pin="--dp 2", without=lossy, price=0.5, to_target=True)])
    assert isinstance(out.file, io.StringIO)
    assert "--dp 2 costs 50.0 % to the target: without it" in out.file.getvalue()


def test_several_changes_at_once_leave_room_for_what_is_then_chosen() -> None:
    given = problem()
    found = explain(
        SimulatedCase(
            problem=given, found=search(given), changes=[parse_change("link=pcie3x16,memory=40GiB,compute=x2")]
        )
    )
    lines = shown(outcome_table(found.outcomes))
    assert any("then chosen" in line for line in lines)


def test_every_class_of_time_has_a_meaning() -> None:
    assert {str(part) for part in TimeClass} <= set(_MEANINGS)


def test_what_was_not_simulated_in_time_is_not_called_rejected() -> None:
    late = [
        Rejection(strategy=builders.strategy(dp=count), cause="time", reason="may be faster: the time has ended")
        for count in (2, 4)
    ]
    text = io.StringIO()
    print_rejections(Console(file=text, width=100), late)
    assert text.getvalue().strip() == "not simulated in the time of the search, and not ruled out: 2, such as dp2"
