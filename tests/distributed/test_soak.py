"""A short soak: one fault of several kinds, and what its comparisons find. `scripts/soak.py` runs for hours."""

from pathlib import Path

import pytest
from tests.soak.campaign import PLANS, Campaign, Reference, Training
from tests.soak.jobs import STEPS

KINDS = (
    "SIGKILL of a rank",
    "exception",
    "full disk",
    "SIGSTOP of a rank, SIGKILL of the parent",
    "SIGTERM of a rank",
)


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_left_behind(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, 2, plans=("dp2",), kinds=KINDS)
    result = campaign.run(faults=len(KINDS))
    assert result.problems == []
    assert result.trainings >= 1
    kinds = {one.kind for one in result.faults}
    assert {*KINDS} - kinds <= {"full disk"}
    ended = [one for one in result.faults if one.disturbed]
    assert len(ended) >= 3
    assert sum(one.redone for one in ended) <= result.redone
    assert 0.0 < result.goodput < 1.0
    assert {row["kind"]: row["faults"] for row in result.table()} == dict.fromkeys(kinds, 1)
    # What was compared without a problem is removed.
    assert {path.name for path in tmp_path.iterdir()} == {"undisturbed", "cache"}


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path, tmp_path / "plan.json", int(PLANS["dp2"][1]), "dp2", tmp_path / "cache")


def test_another_loss_of_a_step_is_found(training: Training) -> None:
    training._hear(0, 10, 1, "0x1p0", 0.0)
    training._hear(1, 11, 1, "0x1p0", 0.0)
    assert training.problems == []
    training._hear(1, 11, 2, "0x1p1", 0.0)
    training._hear(0, 10, 2, "0x1p2", 0.0)
    training.close()
    assert len(training.problems) == 1
    assert "step 2, rank 0: loss 0x1p2, before 0x1p1" in training.problems[0]


def test_ranks_that_go_on_from_another_step_than_the_commit_are_found(training: Training) -> None:
    for step in range(1, 4):
        training._hear(0, 10, step, f"0x{step}p0", 0.0)
    # There is no commit: the training should begin anew.
    training._hear(0, 20, 3, "0x3p0", 0.0)
    training.close()
    assert training.problems == ["went on from step 2, and step 0 is committed"]
    assert training.redone == 1


def test_what_is_not_that_of_an_undisturbed_training_is_found(training: Training) -> None:
    run = training.runs / "soak-1"
    (run / "checkpoints" / "step-1").mkdir(parents=True)
    (run / "run.json").write_text('{"status": "failed"}')
    (run / "plan.json").write_text('{"half')
    (run / ".part").touch()
    (training.temporary / "left").touch()
    (run / "metrics.jsonl").write_text('{"epoch": 1, "loss": 0.5, "accuracy": 0.5, "samples": 3}\n')
    (run / "model.safetensors").write_bytes(b"other")
    training.losses = dict.fromkeys(range(1, STEPS + 1), "0x1p0")
    training.compare(Reference(losses={1: "0x1p0"}, epochs=[], weights=b"these", steps_s=1.0))
    training.close()
    found = "\n".join(training.problems)
    for text in ("losses of steps", "says failed", "epochs [", "the weights", "parts of files", "temporary files",
                 "plan.json", "not committed"):  # fmt: skip
        assert text in found, text
    assert len(training.problems) == 8
