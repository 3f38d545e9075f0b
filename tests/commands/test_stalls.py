"""`profile --stalls`, as a person runs it on small jobs."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran

JOBS = Path(__file__).with_name("faulty_jobs.py")


def test_a_job_is_split_by_its_stalls_with_workers_and_without(tmp_path: Path) -> None:
    done = trimaran("profile", "digits", "--stalls", "--devices", "1", "--steps", "6", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert next(iter(found)) == "schema_version"
    assert sum(found["shares"].values()) == pytest.approx(found["step_time_s"], rel=0.02)
    assert found["shares"]["communication"] == found["shares"]["synchronization"] == 0.0
    assert list(found["ways"]) == ["cold", "cached", "synthetic"]
    assert {way["steps"] for way in found["ways"].values()} == {6}
    assert found["limiter"] in found["shares"]
    assert set(found["environment"]) >= {"torch", "devices"}
    assert not (tmp_path / "runs").exists()

    done = trimaran("profile", "digits", "--stalls", "--devices", "1", "--steps", "2", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 worker a rank" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.alone
@pytest.mark.parametrize("devices", ["1", "2"])
def test_little_of_a_short_step_belongs_to_no_class(devices: str, tmp_path: Path) -> None:
    """What goes on between instructions is a larger share of a short step, if nothing else wants the cores."""
    done = trimaran("profile", "digits", "--stalls", "--devices", devices, "--steps", "24", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for way in json.loads(done.stdout)["ways"].values():
        assert abs(way["shares"]["unattributed"]) < 0.03 * way["step_time_s"]


def test_a_plan_is_run_as_it_is_and_a_short_epoch_is_said(tmp_path: Path) -> None:
    job, plan = f"{JOBS}:good", str(tmp_path / "plan.json")
    decided = ("--microbatches", "2", "--workers", "0")
    done = trimaran("plan", job, "--devices", "1", *decided, "--output", plan, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = trimaran("profile", job, "--stalls", "--plan", plan, "--steps", "4", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["strategy"] == "one device m2"
    # An epoch has four batches, and the first is that of the synthetic steps.
    assert found["ways"]["cold"]["steps"] < 4
    assert any("An epoch has only 64 samples" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([f"{JOBS}:tiny_dataset"], ["4 samples", "16"]),
        ([f"{JOBS}:raises_at_five", "--devices", "1"], ["sample", "no such picture"]),
        (["digits", "--steps", "0"], ["--steps"]),
        (["digits", "--workers", "-1"], ["--workers"]),
        (["digits", "--plan", "absent.json"], ["absent.json"]),
        (["digits", "--batch", "1", "--devices", "2", "--oversubscribe"], ["2 devices"]),
    ],
)
def test_what_is_wrong_is_told_in_one_message(arguments: list[str], parts: list[str], tmp_path: Path) -> None:
    done = trimaran("profile", *arguments, "--stalls", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr
    assert not list(tmp_path.iterdir())


def test_options_of_stalls_want_stalls_and_others_do_not(tmp_path: Path) -> None:
    done = trimaran("profile", "digits", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "--workers" in done.stderr
    for option, value in (("--by", "module"), ("--top", "3"), ("--calibration", "c.json")):
        done = trimaran("profile", "digits", "--stalls", option, value, cwd=tmp_path)
        assert done.returncode == 2
        assert option in done.stderr
