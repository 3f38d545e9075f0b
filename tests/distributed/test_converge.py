"""`trimaran crossover --measure` as a person runs it: real trainings, kept as they end, and a curve that reads back."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import trimaran
from tests.forks.commands import begin_module

from trimaran.convergence.files import read_curve
from trimaran.measure.convergence.runs import find_crossing, read_runs

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from trimaran import Job

def _samples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())

def make(**fields):
    return Job(**dict(
        name="sides",
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        dataset=lambda: _samples(0, 256),
        evaluation_dataset=lambda: _samples(1, 200),
        metric=lambda scores, classes: (scores.argmax(dim=1) == classes).double().mean().item(),
        global_batch_size=16,
        epochs=6,
    ) | fields)

def targeted():
    return make(target=0.9)

def unmeasured():
    return make(metric=None)

def unheld():
    return make(evaluation_dataset=None)

def exploding():
    return make(loss=lambda scores, classes: nn.functional.cross_entropy(scores * 1e30, classes) * 1e30)

def stuck():
    def fail(parameters):
        raise KeyError("no such group")
    return make(optimizer=fail)

def slow():
    import time
    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 2)
        def forward(self, x):
            if self.training:
                time.sleep(0.02)
            return self.inner(x)
    return make(model=Slow)
"""

ARGUMENTS = ("--batches", "8,16,32", "--repeats", "2", "--json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converge")
    (path / "job.py").write_text(JOB)
    return path


@pytest.fixture(scope="module")
def found(folder: Path) -> dict:  # type: ignore[type-arg]
    done = trimaran("converge", "job.py:targeted", *ARGUMENTS, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_batch_has_its_runs_each_of_another_seed(found: dict) -> None:  # type: ignore[type-arg]
    rows = [(run["global_batch_size"], run["reached"]) for run in found["runs"]]
    assert rows == [(batch, True) for batch in (8, 16, 32) for _ in range(2)]
    assert len({run["seed"] for run in found["runs"]}) == 6
    assert len({run["epochs"] for run in found["runs"]}) > 3


def test_points_are_means_of_what_runs_needed(found: dict) -> None:  # type: ignore[type-arg]
    for point in found["curve"]["points"]:
        epochs = [run["epochs"] for run in found["runs"] if run["global_batch_size"] == point["global_batch_size"]]
        assert point["epochs"] == pytest.approx(sum(epochs) / 2)
        assert point["samples"] == pytest.approx(256 * point["epochs"])


def test_larger_batches_need_no_fewer_epochs_by_far(found: dict) -> None:  # type: ignore[type-arg]
    """By the rate of the line, the largest needs at least 0.8 of what the smallest needs."""
    points = found["curve"]["points"]
    assert points[-1]["epochs"] > 0.8 * points[0]["epochs"]
    assert found["recipe"]["rule"] == "linear"


def test_the_curve_file_is_what_plans_take(folder: Path, found: dict) -> None:  # type: ignore[type-arg]
    curve = read_curve(folder / found["curve_file"])
    assert curve.range == (8, 32)
    assert curve.table.network == "job.py:targeted"
    assert (curve.table.target, curve.table.samples_per_epoch) == (0.9, 256)
    assert curve.table.recipe is not None
    assert curve.table.recipe.base_batch == 16
    assert curve.fit.e0 == pytest.approx(found["curve"]["e0"])
    assert [point.amount for point in curve.table.points] == [one["epochs"] for one in found["curve"]["points"]]


def test_each_run_says_how_noisy_its_gradients_were(found: dict) -> None:  # type: ignore[type-arg]
    for run in found["runs"]:
        assert run["gradient_noise"] is None or run["gradient_noise"]["steps"] <= run["updates"]
    assert any(run["gradient_noise"] is not None for run in found["runs"])


def test_epochs_are_read_off_the_evaluations(folder: Path, found: dict) -> None:  # type: ignore[type-arg]
    kept = {(run.batch, run.seed): run for run in read_runs(folder / found["run_dir"])}
    for run in found["runs"]:
        evaluations = kept[run["global_batch_size"], run["seed"]].evaluations
        assert run["epochs"] == find_crossing(evaluations, 0.9)


def test_what_is_finished_is_not_done_again(folder: Path, found: dict) -> None:  # type: ignore[type-arg]
    """Also after a run was lost and another one cut short: the two are done again, and come out the same."""
    path = folder / found["run_dir"] / "runs.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-1][:50])
    done = trimaran("converge", "job.py:targeted", *ARGUMENTS, cwd=folder)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert (found["runs_kept"], again["runs_kept"]) == (0, 4)
    assert again["curve"] == found["curve"]


def test_more_repeats_and_batches_add_to_what_there_is(folder: Path, found: dict) -> None:  # type: ignore[type-arg]
    done = trimaran("converge", "job.py:targeted", "--batches", "8,16,32,64", "--repeats", "2", "--json", cwd=folder)
    more = json.loads(done.stdout)
    assert more["runs_kept"] == 6
    assert more["run_dir"] == found["run_dir"]
    assert [point["global_batch_size"] for point in more["curve"]["points"]] == [8, 16, 32, 64]


def test_a_target_never_reached_stops_at_the_limit_and_says_the_best(folder: Path) -> None:
    done = trimaran(
        "converge", "job.py:make", "--batches", "64", "--repeats", "1", "--target", "2", "--max-epochs", "1.5",
        "--json", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert 0.0 < error["best_metric"] <= 1.0
    assert f"{error['best_metric']:.4g}" in error["message"]
    run = read_runs(folder / error["run_dir"])[-1]
    assert (run.end, run.epochs) == ("epochs", 1.5)


def test_a_time_limit_that_nothing_meets_says_so(folder: Path) -> None:
    done = trimaran("converge", "job.py:slow", "--repeats", "1", "--time-limit", "0.5s", "--json", cwd=folder)
    assert done.returncode == 3, done.stderr
    assert "--time-limit" in json.loads(done.stdout)["error"]["message"]


def test_a_loss_that_is_no_number_ends_the_run_and_not_the_command(folder: Path) -> None:
    done = trimaran(
        "converge", "job.py:exploding", "--batches", "16", "--repeats", "1", "--target", "0.9", "--json", cwd=folder
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_target_the_job_shows_what_it_can_reach(folder: Path) -> None:
    done = trimaran("converge", "job.py:make", "--batches", "8,16", "--repeats", "2", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["target_source"].startswith("99%")
    assert 0.5 < found["target"] < 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("job.py:unmeasured",), "metric"),
        (("job.py:unheld",), "evaluation_dataset"),
        (("job.py:stuck",), "Job.optimizer"),
        (("job.py:make", "--batches", "16,512"), "256"),
        (("job.py:make", "--batches", "16,many"), "many"),
        (("job.py:make", "--batches", "31"), "equal microbatches"),
        (("job.py:make", "--target", "nan"), "--target"),
        (("job.py:make", "--lr-rule", "cubic"), "cubic"),
        (("job.py:make", "--time-limit", "soon"), "soon"),
        (("job.py:make", "--schedule", "none"), "--schedule"),
        (("job.py:make", "--output", "curve.txt"), "curve.txt"),
        (("job.py:make", "--max-epochs", "0"), "--max-epochs"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(folder: Path, arguments: tuple[str, ...], says: str) -> None:
    done = trimaran("converge", *arguments, "--json", cwd=folder)
    assert done.returncode == 2, done.stderr
    assert says in json.loads(done.stdout)["error"]["message"]
    assert "Traceback" not in done.stderr


def test_a_curve_that_could_not_be_written_is_refused_before_anything_runs(folder: Path) -> None:
    done = trimaran("converge", "job.py:make", "--output", "nowhere/curve.json", "--json", cwd=folder)
    assert done.returncode == 4, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "file.unwritable"
    assert "no folder nowhere: make it first" in error["message"]


def new(arguments: Sequence[str], folder: Path, errors: int) -> Any:
    """The command in an interpreter of its own."""
    return subprocess.Popen([sys.executable, "-m", "trimaran", *arguments], cwd=folder, env=own(folder), stderr=errors)


def fork(arguments: Sequence[str], folder: Path, errors: int) -> Any:
    """The command in a fork, as its ranks are."""
    return begin_module("trimaran", *arguments, folder=folder, environment=own(folder), errors=errors)


def own(folder: Path) -> dict[str, str]:
    return os.environ | {"TRIMARAN_CACHE": f"{folder}-cache"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("start", "ending"), [pytest.param(new, signal.SIGINT, marks=pytest.mark.sweep), (fork, signal.SIGKILL)]
)
def test_whatever_ends_the_command_the_same_one_goes_on(tmp_path: Path, start: Any, ending: signal.Signals) -> None:
    (tmp_path / "job.py").write_text(JOB)
    arguments = ("converge", "job.py:slow", "--batches", "16,64", "--repeats", "2", "--target", "0.8", "--devices", "1")
    errors = tmp_path / "errors"
    with errors.open("wb") as stream:
        process = start(arguments, tmp_path, stream.fileno())
    deadline = time.monotonic() + 100
    while not any(path.stat().st_size for path in tmp_path.glob("runs/*/runs.jsonl")):
        assert process.poll() is None, errors.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, ending)
    process.wait(timeout=30)
    said = errors.read_text()
    assert process.returncode in (130, -signal.SIGKILL)
    # What a killed command leaves is in the folder of its runs, where the next one removes it.
    assert ending != signal.SIGKILL or list(tmp_path.glob("runs/*/taken-*"))
    assert "Traceback" not in said
    assert ending != signal.SIGINT or "the same command goes on" in said
    done = trimaran(*arguments, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not list(tmp_path.glob("runs/*/taken-*"))
    assert 1 <= found["runs_kept"] < 4
    assert len(found["runs"]) == 4
