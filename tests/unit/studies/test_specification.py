"""Verdicts of the requirements of the four studies, and the lines of their page."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.raising import raises
from typer.main import get_command

from trimaran.cli import app
from trimaran_studies.cli import app as studies
from trimaran_studies.specification.page import COMMAND as PAGE
from trimaran_studies.specification.page import judge, lines_of, requirements, write_page
from trimaran_studies.specification.requirements import (
    Check,
    Found,
    Recorded,
    Requirement,
    Verdict,
    bounded,
    judged,
    needs_gpu,
    not_judged,
    reproduced,
)
from trimaran_studies.survey import COMMAND as SURVEY

ROOT = Path(__file__).parents[3]
MET = judged("1 s", "2 s", holds=True)
MISSED = judged("3 s", "2 s", holds=False, reason="too slow")
KNOWN = bounded("3 s", "2 s", holds=True, reason="inside it is 1 s", missed="")
NOT_REPRODUCED = reproduced("3 s", "2 s", holds=False, experiment="the link was slower")
OPEN = not_judged("3 s", "", "no bound")
GPU = needs_gpu("copies", "95 %", "none here")


def found(*checks: Check) -> Found:
    row = Requirement(id="A1", must="be fast", command="trimaran fast | tee", find=lambda _: checks)
    return Found(requirement=row, checks=checks)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ((MET, OPEN), Verdict.MET),
        ((MET, GPU), Verdict.MET),
        ((MET, KNOWN), Verdict.KNOWN),
        ((KNOWN, NOT_REPRODUCED, GPU), Verdict.NOT_REPRODUCED),
        ((MET, MISSED, NOT_REPRODUCED, GPU), Verdict.MISSED),
        ((GPU, OPEN), Verdict.NEEDS_GPU),
        ((OPEN,), Verdict.NOT_JUDGED),
        ((), Verdict.NOT_JUDGED),
    ],
)
def test_a_row_is_missed_where_one_check_is(checks: tuple[Check, ...], verdict: Verdict) -> None:
    assert found(*checks).verdict is verdict


def test_a_missed_bound_needs_a_reason() -> None:
    with raises("specification.no-reason", figure="3 s"):
        judged("3 s", "2 s", holds=False)
    assert judged("1 s", "2 s", holds=True, reason="too slow").reason == ""


def test_a_row_has_a_line_for_each_check() -> None:
    first, second = lines_of(found(MET, MISSED))
    assert first.markdown == "| A1 | be fast: `trimaran fast \\| tee` | 1 s | 2 s | met |"
    assert second.markdown == "|  |  | 3 s | 2 s | **missed**: too slow |"


def test_there_are_42_rows_each_once() -> None:
    ids = [requirement.id for requirement in requirements()]
    counts = {"A": 11, "B": 11, "C": 10, "D": 10}
    assert ids == [f"{letter}{number}" for letter, count in counts.items() for number in range(1, count + 1)]


def test_tests_that_rows_name_exist() -> None:
    named = [name for requirement in requirements() for name in requirement.tests]
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_a_row_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with raises("specification.unknown-row", match="A1 to A11", row="E1"):
        judge(Recorded(tmp_path), rows=["E1"])


def test_measured_figures_that_are_not_there_are_said(tmp_path: Path) -> None:
    with raises("specification.no-results", match="checkout", path=str(tmp_path / "feed.json")):
        judge(Recorded(tmp_path), rows=["a4"])


def test_skipped_tests_decide_nothing(tmp_path: Path) -> None:
    """Two of three passed, and the third was skipped; then all passed; then one failed."""
    outcomes = ((2, 0, 1, Verdict.NOT_JUDGED), (3, 0, 0, Verdict.MET), (2, 1, 0, Verdict.MISSED))
    for passed, failed, skipped, verdict in outcomes:
        row = {"passed": passed, "failed": failed, "skipped": skipped, "failures": ["it"] * failed, "skips": ["busy"]}
        recorded = Recorded(tmp_path)
        recorded.read["specification"] = {
            "environment": {"date": "2026-11-22", "processor": "one", "cores": 4},
            "rows": {"A3": row},
        }
        check = recorded.tests("A3", "as it should")
        assert check.verdict is verdict
        assert check.measured == "2026-11-22, one, 4 cores (benchmarks/results/specification.json)"
    assert Recorded(tmp_path, {"specification": {"rows": {}}}).tests("A3", "").verdict is Verdict.NOT_JUDGED


def test_a_page_counts_its_rows() -> None:
    everything = [Found(requirement=row, checks=(MISSED if row.id == "B7" else MET,)) for row in requirements()]
    page = write_page(everything)
    assert "| B. Training on a machine with eight GPUs, taken apart | 10 | 0 | 0 | 1 | 0 | 0 |" in page
    assert "Missed: B7; each with its reason below." in page
    assert page.count("| 2 s | met |") == 41


def test_commands_of_users_are_read_by_the_program() -> None:
    ours, theirs = "trimaran ", "python -m trimaran_studies "
    asked = [row.command for row in requirements() if row.command.startswith((ours, theirs))]
    assert len(asked) > 20
    for text in (*asked, PAGE, SURVEY):
        group: Any = get_command(studies if text.startswith(theirs) else app)
        words = shlex.split(text.removeprefix(theirs).removeprefix(ours))
        while hasattr(group, "resolve_command"):
            name, group, words = group.resolve_command(typer.Context(group), words)
        group.make_context(name, words)


def test_commands_of_a_checkout_are_there() -> None:
    for row in requirements():
        name, *arguments = shlex.split(row.command)
        if name == "scripts/bench":
            assert (ROOT / "benchmarks" / arguments[0] / "run.py").is_file(), row.id
        elif name != "trimaran" and arguments[:2] != ["-m", "trimaran_studies"]:
            assert name in ("scripts/pytest", "python"), row.id
            files = [argument for argument in arguments if "/" in argument]
            assert files, row.id
            assert [file for file in files if not (ROOT / file).exists()] == [], row.id
