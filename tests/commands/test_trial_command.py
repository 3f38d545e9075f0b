"""`trimaran train --trial`: what it prints and keeps."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran

PLANTED = Path(__file__).with_name("planted_jobs.py")


def test_a_run_says_how_near_its_first_steps_were_to_one_process(tmp_path: Path) -> None:
    done = trimaran("train", "digits", "--strategy", "dp2", "--epochs", "1", "--trial", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = document["verified"]
    assert (found["steps"], found["restarted"], found["reason"]) == (6, True, "")
    assert found["tensors"] > 0
    assert 0 <= found["difference"] <= found["limit"] < 0.01
    assert found["seconds"] > 0
    report = json.loads((tmp_path / document["run_dir"] / "report.json").read_text())
    assert report["verified"] == found


@pytest.mark.parametrize("strategy", [pytest.param("m2", marks=pytest.mark.sweep), "pp2 gpipe m2"])
def test_a_forward_that_writes_to_its_batch_agrees(tmp_path: Path, strategy: str) -> None:
    """One process has the batch as it was read."""
    options = ("--strategy", strategy, "--epochs", "1", "--verify", "2", "--json")
    done = trimaran("train", f"{PLANTED}:in_place", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verified"]["steps"] == 6
