"""A plan chooses how ranks are fed, and training does what the plan says.

One folder for all: what the first command measures, the others find.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import trimaran

JOB = f"{Path(__file__).parent / 'slow_jobs.py'}:reading"
PLAN = ("plan", JOB, "--devices", "2", "--dp", "2", "--execution", "eager", "--json")
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feeding")


def _document(finished: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert finished.returncode == 0, finished.stderr + finished.stdout
    document: dict[str, Any] = json.loads(finished.stdout)
    return document


def _plan(folder: Path) -> dict[str, Any]:
    return _document(trimaran(*PLAN, "--forbid", "cache", "--output", "plan.json", cwd=folder))


@pytest.fixture(scope="module")
def planned(folder: Path) -> dict[str, Any]:
    return _plan(folder)


@pytest.fixture(scope="module")
def in_line(folder: Path, planned: dict[str, Any]) -> dict[str, Any]:
    return _document(trimaran(*PLAN, "--workers", "0", "--forbid", "cache", cwd=folder))


@pytest.mark.alone
def test_slow_reads_are_planned_with_workers_and_the_reason(planned: dict[str, Any], in_line: dict[str, Any]) -> None:
    """8 samples of 5 ms are 40 ms of a step in line; fed, little of them is left."""
    assert planned["feeding"]["workers"] >= 2
    assert any("a step that loads in line takes" in reason for reason in planned["feeding"]["reasons"])
    assert planned["feeding"]["reasons"][0] in planned["notes"]
    assert in_line["feeding"]["workers"] == 0
    assert in_line["chosen"]["step_time_s"] > 0.04
    assert planned["chosen"]["step_time_s"] < 0.7 * in_line["chosen"]["step_time_s"]


@pytest.mark.alone
def test_what_a_pin_of_the_feeding_costs_is_said(in_line: dict[str, Any]) -> None:
    price = next(entry for entry in in_line["pins"] if entry["pin"] == "--workers 0")
    assert price["price"] > 0.3
    assert " w" in price["without"]


@pytest.mark.alone
def test_training_is_fed_as_planned(folder: Path, planned: dict[str, Any], in_line: dict[str, Any]) -> None:
    """Nearer to the step that was predicted than to one that loads in line; `benchmarks/feed` says how near."""
    report = _document(trimaran("train", JOB, "--plan", "plan.json", "--json", cwd=folder))
    assert report["plan"]["strategy"] == planned["chosen"]["strategy"]
    fed_s, in_line_s = planned["chosen"]["step_time_s"], in_line["chosen"]["step_time_s"]
    assert report["measured"]["step_time_s"] < (fed_s + in_line_s) / 2


@pytest.mark.alone
def test_a_plan_in_a_file_can_be_fed_otherwise(folder: Path, planned: dict[str, Any]) -> None:
    report = _document(trimaran("train", JOB, "--plan", "plan.json", "--workers", "0", "--json", cwd=folder))
    assert " w" not in report["plan"]["strategy"]
    assert report["measured"]["step_time_s"] > 0.04


@pytest.mark.alone
def test_free_loading_is_still_a_question(folder: Path, planned: dict[str, Any]) -> None:
    found = _document(trimaran("explain", "plan.json", "--what-if", "load=0", "--json", cwd=folder))
    assert found["notes"] is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "-1"), "0"),
        (("--workers", "999"), "256"),
        (("--forbid", "cach"), 'did you mean "cache"'),
    ],
)
def test_what_means_nothing_is_refused(folder: Path, options: tuple[str, ...], message: str) -> None:
    finished = trimaran("plan", JOB, *options, cwd=folder)
    assert finished.returncode == 2
    assert message in finished.stderr + finished.stdout
