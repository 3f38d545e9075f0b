"""`profile` and `explain`, as a person runs them on a small job."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran

JOBS = Path(__file__).with_name("faulty_jobs.py")


@pytest.mark.alone
def test_a_job_is_profiled_and_its_plan_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What was measured briefly is measured again by the next command.
    monkeypatch.delenv("TRIMARAN_TEST_BRIEF", raising=False)
    job, plan = f"{JOBS}:good", str(tmp_path / "plan.json")
    done = trimaran("plan", job, "--devices", "1", "--output", plan, cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    done = trimaran("profile", job, "--devices", "1", "--by", "kind", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)
    assert next(iter(profile)) == "schema_version"
    step = profile["steps"][0]
    assert sum(phase["seconds"] for phase in step["phases"]) == pytest.approx(step["step_time_s"])
    assert {spot["name"] for spot in profile["spots"]} >= {"Linear", "ReLU", "loss"}

    done = trimaran("explain", plan, "--why-not", "PP", "--what-if", "compute=x2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    explained = json.loads(done.stdout)
    assert next(iter(explained)) == "schema_version"
    assert explained["plan"]["step_time_s"] == pytest.approx(step["step_time_s"])
    assert sum(explained["plan"]["parts_s"].values()) == pytest.approx(explained["plan"]["step_time_s"])
    assert "needs 2 devices" in explained["why_not"][0]["obstacle"]
    assert 0.0 < explained["what_if"][0]["gain"] < 0.5


def test_on_a_machine_the_plan_of_the_file_is_explained(tmp_path: Path) -> None:
    """Two stages, where replicas would be chosen."""
    there = ("--cluster", "dgx1-v100", "--json")
    asked = ("--devices", "2", "--batch", "4096", "--pp", "2", "--schedule", "gpipe", "--output", "plan.json")
    done = trimaran("plan", "lenet", *asked, *there, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)["chosen"]
    done = trimaran("explain", "plan.json", "--what-if", "link=x2", *there, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    explained = json.loads(done.stdout)
    assert (explained["devices"], explained["global_batch_size"]) == (2, 4096)
    assert explained["plan"]["strategy"] == planned["strategy"]
    assert explained["plan"]["step_time_s"] == pytest.approx(planned["step_time_s"])
    # What was decided then holds, and has its price.
    assert [(paid["pin"], paid["without"]) for paid in explained["pins"]][-1] == ("all pins", "dp2")
    assert not any("planned again now" in note for note in explained["notes"])


def test_a_transformer_on_many_devices_is_explained(tmp_path: Path) -> None:
    asked = ("explain", "llama2:70b", "--cluster", "hgx-h100:128", "--devices", "1024", "--why-not", "fsdp")
    done = trimaran(*asked, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert next(iter(found)) == "schema_version"
    assert found["why_not"][0]["best"]["degrees"]["zero"] == 3
    assert found["why_not"][0]["best"]["step_time_s"] > found["plan"]["step_time_s"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["explain", "digits", "--why-not", "ppp"], 'did you mean "pp'),
        (["explain", "digits", "--what-if", "links=x2"], 'did you mean "link"'),
        (["explain", "absent.json"], "absent.json"),
        (["explain", "llama2:70b", "--cluster", "dgx-h100:2", "--why-not", "placement"], "fsdp, ddp"),
        (["explain", "llama2:70b", "--cluster", "dgx-h100:2", "--what-if", "load=0"], "analytical model"),
        (["explain", "llama2:70b", "--cluster", "dgx-h100:2", "--keep", "a=0"], "--keep a=0"),
        (["profile", "digits", "--by", "layer"], "layer"),
    ],
)
def test_what_means_nothing_is_told_at_once(arguments: list[str], part: str, tmp_path: Path) -> None:
    done = trimaran(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert part in done.stderr
    assert "Traceback" not in done.stderr
