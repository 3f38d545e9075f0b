"""Faults planted in small scripts are found at their line; their twins without the fault raise no alarm."""

import re
from pathlib import Path

import pytest
from tests.rehearsal.side_by_side import Job, marked_lines, rehearse, summary

from trimaran.rehearsal.agreement import AgreementReport, agree
from trimaran.rehearsal.record import Record

FOLDER = Path(__file__).with_name("faults")
SCRIPTS = {path.stem: path for path in sorted(FOLDER.glob("*.py")) if path.stem != "small"}
HEAD = re.compile(r"# world (?P<world>\d+), ranks (?P<ranks>[\d ]+), kind (?P<kind>\w+)(?P<sweep>, sweep)?")


def job_of(name: str, *, clean: bool) -> Job:
    head = HEAD.match(SCRIPTS[name].read_text())
    assert head is not None, f"{name}.py does not begin with its world, ranks and kind"
    ranks = tuple(map(int, head["ranks"].split()))
    arguments = ("--clean",) if clean else ()
    return Job(f"{name}{'-clean' if clean else ''}", SCRIPTS[name], int(head["world"]), ranks, arguments)


OTHERS = {
    name: Job(name, Path(__file__).parent / "scripts" / f"{name}.py", 4, (0, 1, 2, 3))
    for name in ("odd_collectives", "uneven_join")
}
"""Scripts of users that ask for much, without a fault."""


SWEEP = {name for name, path in SCRIPTS.items() if ", sweep\n" in path.read_text()}
NAMES = [pytest.param(name, marks=pytest.mark.sweep) if name in SWEEP else name for name in SCRIPTS]


@pytest.fixture(scope="module")
def of_suite(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    jobs = [job_of(name, clean=clean) for name in sorted(SCRIPTS.keys() - SWEEP) for clean in (False, True)]
    jobs += OTHERS.values()
    return rehearse(jobs, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def of_sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    jobs = [job_of(name, clean=clean) for name in sorted(SWEEP) for clean in (False, True)]
    return rehearse(jobs, tmp_path_factory.mktemp("sweep"))


@pytest.fixture
def records(name: str, request: pytest.FixtureRequest) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = request.getfixturevalue("of_sweep" if name in SWEEP else "of_suite")
    return found


def said(answer: AgreementReport, records: list[Record]) -> str:
    return "\n".join([*(f"{finding.kind}: {finding.text}" for finding in answer.findings), summary(records)])


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_fault_is_found_at_its_line(name: str, records: dict[str, list[Record]]) -> None:
    answer = agree(records[name])
    head = HEAD.match(SCRIPTS[name].read_text())
    assert head is not None
    assert not answer.ok, said(answer, records[name])
    first = answer.findings[0]
    assert first.kind == head["kind"], said(answer, records[name])
    own = [next((frame for frame in side.lines if frame.own), None) for side in first.sides]
    named = {frame.line for frame in own if frame is not None and frame.file == f"{name}.py"}
    assert named & marked_lines(SCRIPTS[name]), said(answer, records[name])


@pytest.mark.parametrize("name", NAMES)
def test_its_twin_without_the_fault_raises_no_alarm(name: str, records: dict[str, list[Record]]) -> None:
    answer = agree(records[f"{name}-clean"])
    assert answer.ok, said(answer, records[f"{name}-clean"])
    assert not answer.waits
    ends = {record.end.how for record in records[f"{name}-clean"]}
    assert ends <= {"finished", "exit"}, said(answer, records[f"{name}-clean"])


@pytest.mark.parametrize("name", OTHERS)
def test_other_scripts_raise_no_alarm(name: str, records: dict[str, list[Record]]) -> None:
    answer = agree(records[name])
    assert answer.ok, said(answer, records[name])
    assert {record.end.how for record in records[name]} == {"finished"}, said(answer, records[name])


def test_there_are_enough_of_them() -> None:
    assert len(SCRIPTS) >= 20
    assert all(marked_lines(path) for path in SCRIPTS.values())
