"""`trimaran train --gradient-noise`: what it prints, what it keeps, and what it refuses."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran


@pytest.mark.sweep
def test_a_run_keeps_its_noise_scale(tmp_path: Path) -> None:
    """One device alone computes its batch in two microbatches; the report has the same figures as the output."""
    options = ("--devices", "1", "--workers", "0", "--epochs", "2", "--gradient-noise", "--json")
    done = trimaran("train", "digits", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["plan"]["strategy"] == "one device m2"
    assert any("one device m2 in place of one device" in note for note in document["notes"])
    found = document["gradient_noise"]
    low, high = found["interval"]
    assert 0 < low <= found["b_simple"] <= high
    assert found["scaled"]["b_crit"] > 0
    assert found["optimizer"] == "AdamW"
    assert [entry["epoch"] for entry in found["by_epoch"]] == [1, 2]
    assert sum(entry["steps"] for entry in found["by_epoch"]) == found["steps"]
    report = json.loads((tmp_path / document["run_dir"] / "report.json").read_text())
    assert report["gradient_noise"] == found


def test_a_plan_without_whole_gradients_is_refused(tmp_path: Path) -> None:
    job = f"{Path(__file__).with_name('faulty_jobs.py')}:good"
    pins = ("--devices", "2", "--zero", "3", "--execution", "eager")
    planned = trimaran("plan", job, *pins, "--output", "plan.json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    done = trimaran("train", job, "--plan", "plan.json", "--gradient-noise", cwd=tmp_path)
    assert done.returncode == 2
    assert "zero=3" in done.stderr
    assert not (tmp_path / "runs").exists()
