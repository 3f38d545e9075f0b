"""Faults that show after some steps: found with as many steps as the report of three steps suggests."""

from pathlib import Path

import pytest
from tests.rehearsal.side_by_side import Job, marked_lines, rehearse, summary

from trimaran.rehearsal.agreement import agree
from trimaran.rehearsal.one_model import apart
from trimaran.rehearsal.record import Record

SCRIPT = Path(__file__).parent / "late" / "ends.py"

STEPS = {"loader": 6, "schedule": 12}
"""What the script says by the length of its loader, and by that of its schedule."""

HANGS = {"unused": (), "uneven": (), "order": (True,), "barrier": (True,), "save": (True,)}
"""Faults that end in a hang, and whether their line is marked: others are asked for by DDP's backward."""


def job(fault: str, counted: str, steps: int) -> Job:
    return Job(f"{fault} {counted} {steps}", SCRIPT, 4, (0, 3), (fault, counted), steps)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    jobs = [job("none", counted, steps) for counted, most in STEPS.items() for steps in (3, most)]
    jobs += [job("uneven", "loader", steps) for steps in (3, 15)]
    jobs += [job(fault, "loader", 6) for fault in (*HANGS, "drift") if fault != "uneven"]
    return rehearse(jobs, tmp_path_factory.mktemp("late"))


@pytest.mark.parametrize("counted", STEPS)
def test_a_script_says_how_many_steps_it_takes(counted: str, records: dict[str, list[Record]]) -> None:
    first, last = records[f"none {counted} 3"], records[f"none {counted} {STEPS[counted]}"]
    assert [(one.end.how, one.to_come) for one in first] == [("steps", STEPS[counted])] * 2
    assert {one.end.how for one in last} == {"finished"}
    assert agree(last).ok
    assert apart(last) is None


def test_ranks_whose_loaders_differ_are_told_the_longest(records: dict[str, list[Record]]) -> None:
    assert [one.to_come for one in records["uneven loader 3"]] == [12, 15]
    assert agree(records["uneven loader 3"]).ok


@pytest.mark.parametrize("fault", HANGS)
def test_a_hang_at_the_end_is_found_at_its_line(fault: str, records: dict[str, list[Record]]) -> None:
    found = records["uneven loader 15" if fault == "uneven" else f"{fault} loader 6"]
    answer = agree(found)
    assert not answer.ok, summary(found)
    lines = {frame.line for side in answer.findings[0].sides for frame in side.lines if frame.file == SCRIPT.name}
    assert lines & marked_lines(SCRIPT, "# fault" if HANGS[fault] else "# backward"), summary(found)


def test_replicas_that_drift_later_are_told(records: dict[str, list[Record]]) -> None:
    found = records["drift loader 6"]
    answer = apart(found)
    assert answer is not None, summary(found)
    assert (answer.models, answer.since, len(answer.parameters)) == (4, 2, 6)
