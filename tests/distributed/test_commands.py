"""From a plan to a trained model by the commands, with everything that a run leaves."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests import builders
from tests.commands.running import new_trimaran, trimaran

from trimaran.features.training.train import train_planned
from trimaran.jobs.resolve import JobSource
from trimaran.networks.small_images import LeNet
from trimaran.planning.plan import make_plan
from trimaran.program.plan_file import read_plan
from trimaran.program.text import parse_program

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def planned(folder: Path) -> dict[str, object]:
    done = trimaran("plan", "digits", "--devices", "2", "--json", "--output", "plan.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def trained(folder: Path, planned: dict[str, object]) -> dict[str, object]:
    done = trimaran("train", "digits", "--plan", "plan.json", "--epochs", "3", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_plan_names_what_was_considered(planned: dict) -> None:  # type: ignore[type-arg]
    assert next(iter(planned)) == "schema_version"
    names = [candidate["strategy"] for candidate in planned["candidates"]]
    assert {"one device", "dp2"} <= set(names)
    assert any(name.startswith("pp2") for name in names)
    chosen = next(one for one in planned["candidates"] if one["strategy"] == planned["chosen"]["strategy"])
    assert chosen.items() <= planned["chosen"].items()
    assert planned["chosen"]["speedup"] > 0 <= planned["chosen"]["gap"]
    assert planned["baseline"]["strategy"] == "dp2"
    assert set(planned["baselines"]) == {"one device", "dp2", "dp2 zero3", "dp2 m2"}
    assert any(candidate["pareto"] for candidate in planned["candidates"])
    assert {entry["cause"] for entry in planned["rejected"]} >= {"compiling"}
    for candidate in planned["candidates"]:
        low, high = candidate["interval_s"]
        assert 0 < low <= candidate["step_time_s"] <= high
        assert min(candidate["peak_bytes_by_rank"]) > 0 < candidate["peak_bytes"]
        assert candidate["limiter"]


def test_a_plan_file_reads_back(folder: Path, planned: dict) -> None:  # type: ignore[type-arg]
    assert read_plan(folder / "plan.json").strategy.name == planned["chosen"]["strategy"]


def test_the_same_costs_give_the_same_plan_byte_for_byte(
    folder: Path,
    planned: dict,  # type: ignore[type-arg]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in an interpreter of its own, where Python orders its sets in another way, as it has another seed."""
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    done = new_trimaran("plan", "digits", "--devices", "2", "--output", "seeded.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "seeded.json").read_bytes() == (folder / "plan.json").read_bytes()


def test_a_plan_can_be_simulated(folder: Path, planned: dict) -> None:  # type: ignore[type-arg]
    done = trimaran("simulate", "plan.json", "--json", "--trace", "step.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    simulated = json.loads(done.stdout)
    assert simulated["step_time_s"] == pytest.approx(planned["chosen"]["step_time_s"], rel=1e-9)
    assert json.loads((folder / "step.json").read_text())["traceEvents"]


def test_a_run_says_what_was_predicted_and_what_was_measured(trained: dict) -> None:  # type: ignore[type-arg]
    assert next(iter(trained)) == "schema_version"
    predicted, measured = trained["predicted"]["step_time_s"], trained["measured"]["step_time_s"]
    assert trained["error"] == pytest.approx(predicted / measured - 1)
    assert trained["samples_per_s"] > 0
    assert trained["plan"]["strategy"]
    # Three of the fifteen epochs: far above the 10 % of guessing, not yet the accuracy of the whole job.
    assert trained["final"]["accuracy"] > 0.6


def test_a_run_directory_has_what_its_page_says(folder: Path, trained: dict) -> None:  # type: ignore[type-arg]
    run = folder / trained["run_dir"]
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    program = parse_program((run / "program.txt").read_text())
    ids = {instruction.id for instruction in program}
    predicted, measured = (
        json.loads((run / f"{name}.json").read_text())["timeline"] for name in ("predicted", "measured")
    )
    assert set(predicted["instructions"]) == ids
    assert set(measured["instructions"]) <= ids
    assert json.loads((run / "trace.json").read_text())["traceEvents"]
    assert json.loads((run / "report.json").read_text())["by_rank"]["rank"] == list(range(len(program.ranks)))
    for rank in range(len(program.ranks)):
        assert (run / "logs" / f"rank{rank}.log").exists()
    LeNet().load_state_dict(load_file(run / "model.safetensors"))


def test_a_model_that_cannot_be_exported_is_trained_and_the_reason_is_said(folder: Path) -> None:
    jobs = Path(__file__).parents[1] / "commands" / "faulty_jobs.py"
    done = trimaran("train", f"{jobs}:cannot_be_exported", "--devices", "2", cwd=folder)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "the model is one operation: no pipeline, no operator placement" in text
    assert "torch.export could not trace it" in text
    # What it decides by is a sum over the batch, which a part of it has not.
    assert "the way that the forward takes depends on values of the batch" in text


@pytest.mark.usefixtures("_forked")
def test_a_last_batch_of_fewer_samples_than_replicas_is_trained_on(tmp_path: Path) -> None:
    jobs = Path(__file__).parents[1] / "commands" / "faulty_jobs.py"
    request = builders.plan_request(devices=2, pins=builders.pins(dp=2))
    trained = train_planned(make_plan(JobSource(reference=f"{jobs}:one_sample_left"), request), parent=tmp_path)
    assert trained.steps == 3


def test_the_demo_trains_on_two_processes_whatever_is_fastest(folder: Path) -> None:
    (words,) = re.findall(r"^exec \S+/trimaran (.*)$", (ROOT / "scripts" / "demo").read_text(), re.MULTILINE)
    done = trimaran(*words.split(), "--epochs", "1", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert "--dp 2" in words  # not left to the search, which takes one device where that is faster
    assert run["plan"]["strategy"].startswith("dp2")
    assert len(list((folder / run["run_dir"] / "logs").glob("rank*.log"))) == 2


def test_what_is_here_is_listed(folder: Path) -> None:
    jobs = json.loads(trimaran("jobs", "--json", cwd=folder).stdout)
    assert "digits" in [job["name"] for job in jobs["jobs"]]
    doctor = json.loads(trimaran("doctor", "--json", cwd=folder).stdout)
    assert doctor["ok"]
