"""Where a job fails on parts of a batch, kinds of plans that need such parts are rejected, and others made."""

import json
from pathlib import Path

import pytest
from tests.commands import planted_jobs
from tests.commands.running import trimaran

from trimaran.graph.capture.capture import capture_and_look
from trimaran.program.refusals import objection
from trimaran.program.strategy import Strategy

UNKNOWN = "not known whether parts of a batch train this job exactly"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("plain", ()),
        ("needs_two", (1,)),
        ("needs_two_of_eight", (1,)),
        ("squeezed", (1,)),
        ("collates_two", (1,)),
        ("loss_needs_four", (1, 2, 3)),
        ("needs_eight", (1, 2, 3, 4, 5)),
    ],
)
def test_sizes_on_which_a_job_fails_are_seen(name: str, sizes: tuple[int, ...]) -> None:
    seen = capture_and_look(getattr(planted_jobs, name)()).graph.behaviour
    assert seen is not None
    assert tuple(size for size, _ in seen.failing) == sizes
    assert objection(seen, Strategy()) is None
    batch = seen.batches[0]
    refused = objection(seen, Strategy(dp=batch))
    assert (refused is not None) == bool(sizes)
    if refused is not None:
        assert refused.startswith(f"the job fails on parts of 1 of a global batch of {batch}: {seen.failing[0][1]}; ")


def test_parts_of_a_whole_batch_that_fails_are_looked_at() -> None:
    seen = capture_and_look(planted_jobs.takes_six()).graph.behaviour
    assert seen is not None
    assert [size for size, _ in seen.failing] == [8]
    assert "the job fails on a global batch of 8: ValueError: a spread" in str(objection(seen, Strategy()))
    assert objection(seen, Strategy(dp=2)) is None


def own(folder: Path, name: str) -> str:
    # The reference is printed as it was given, so it has to be short.
    (folder / "own.py").write_text(f"from tests.commands.planted_jobs import {name} as make\n")
    return "own.py:make"


def test_a_plan_that_needs_parts_that_fail_is_refused_with_what_was_raised_and_another_one_trains(
    tmp_path: Path,
) -> None:
    job = own(tmp_path, "needs_two")
    done = trimaran("plan", job, "--devices", "2", "--dp", "2", cwd=tmp_path)
    assert done.returncode == 3
    assert "fails on parts of 1 of a global batch of 2: ValueError: a spread needs 2 samples" in done.stderr
    assert "planted_jobs.py:" in done.stderr
    done = trimaran("plan", job, "--devices", "2", "--output", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert UNKNOWN not in done.stdout
    strategy = json.loads((tmp_path / "plan.json").read_text())["strategy"]
    assert strategy.get("dp", 1) * strategy.get("microbatches", 1) == 1
    done = trimaran("train", job, "--plan", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.sweep
def test_parts_that_could_not_be_looked_at_are_refused_or_said_once_where_they_are_accepted(tmp_path: Path) -> None:
    job, failed = own(tmp_path, "needs_sixteen"), "it failed on 12 of 24 samples: ValueError: a spread needs 16 samples"
    asked = ("plan", job, "--devices", "2", "--dp", "2", "--microbatches", "1")
    done = trimaran(*asked, cwd=tmp_path)
    assert done.returncode == 3, done.stdout
    assert f"as a look at the job failed: {failed}" in done.stderr
    done = trimaran(*asked, "--accept-inexact", "--output", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert said.count(UNKNOWN) == 1
    assert f"note: {UNKNOWN}: {failed}" in said
    assert "the trial of trimaran train compares the first steps with one process" in said
    done = trimaran("train", job, "--plan", "plan.json", "--accept-inexact", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert " ".join(done.stdout.split()).count(UNKNOWN) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["takes_six", "squeezed", "uncopyable"])
def test_what_fails_when_it_is_measured_leaves_other_plans(name: str, tmp_path: Path) -> None:
    done = trimaran("plan", own(tmp_path, name), "--devices", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reasons = {one["reason"] for one in json.loads(done.stdout)["rejected"]}
    if name == "takes_six":
        assert any(
            one.startswith("the job fails on a global batch of 8: ValueError: a spread needs 1 samples and takes 6")
            for one in reasons
        )
