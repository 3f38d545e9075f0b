"""A wrong job reference, or a wrong job file, is told as the user's error, with its place."""

from pathlib import Path

import pytest
import torch
from tests.raising import raises

from trimaran.features.check import check_job
from trimaran.jobs.resolve import JobSource, check_room, resolve
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import PlanRequest
from trimaran.user_code.model import make_model

GOOD = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from trimaran import Job

def make():
    return Job(
        model=lambda: nn.Linear(2, 1),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1)),
        global_batch_size=4,
    )

def broken():
    raise RuntimeError("no such table")

def wrong():
    return 3
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_job.py"
    path.write_text(GOOD)
    return path


def test_a_factory_in_a_file_makes_the_job(job_file: Path) -> None:
    assert resolve(f"{job_file}:make").global_batch_size == 4


def test_what_a_file_and_its_factory_draw_is_the_same_in_each_process(tmp_path: Path) -> None:
    """A teacher of the loss, say; whoever resolves the job draws as if nothing had been drawn."""
    text = f"{GOOD}\nOF_FILE = torch.rand(1)\n\ndef drawing():\n    global OF_CALL\n    OF_CALL = torch.rand(1)\n"
    drawn = []
    for process in range(2):
        path = tmp_path / str(process) / "drawing_job.py"
        path.parent.mkdir()
        path.write_text(f"{text}    return make()\n")
        torch.manual_seed(process)
        for _ in range(2):
            drawing = resolve(f"{path}:drawing").model.__globals__
            drawn.append((float(drawing["OF_FILE"]), float(drawing["OF_CALL"])))
        after = torch.rand(1)
        torch.manual_seed(process)
        assert after == torch.rand(1)
    assert len(set(drawn)) == 1


def test_overrides_take_the_place_of_the_jobs_own_figures(job_file: Path) -> None:
    job = JobSource(reference=f"{job_file}:make", seed=7, epochs=3, global_batch_size=8).make()
    assert (job.seed, job.epochs, job.global_batch_size) == (7, 3, 8)


def test_a_near_miss_of_a_built_in_name_is_recognised() -> None:
    with raises("job.unknown", match='"digits"'):
        resolve("digit")


def test_a_file_without_a_factory_is_told_how_to_name_one(job_file: Path) -> None:
    with raises("job.unknown", match='my_job.py:make_job"'):
        resolve(str(job_file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises("user-function.missing-file", match=r"absent\.py"):
        resolve(f"{tmp_path}/absent.py:make")


def test_an_unknown_factory_is_met_with_the_nearest_one(job_file: Path) -> None:
    with raises("user-function.missing", match='"make"', function="mak"):
        resolve(f"{job_file}:mak")


def test_a_factory_that_raises_is_told_with_its_line(job_file: Path) -> None:
    line = GOOD.splitlines().index('    raise RuntimeError("no such table")') + 1
    with raises("job.factory-fails", match=rf"(?s):broken .*RuntimeError.*my_job\.py:{line}"):
        resolve(f"{job_file}:broken")


def test_a_factory_that_returns_something_else_is_told_what(job_file: Path) -> None:
    with raises("job.not-a-job", match=r"trimaran\.Job"):
        resolve(f"{job_file}:wrong")


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "torn.py"
    path.write_text("x = 1\ndef make(:\n    pass\n")
    with raises("user-function.syntax-error", match=r"torn\.py:2"):
        resolve(f"{path}:make")


def test_a_file_that_raises_when_read_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "raises.py"
    path.write_text("x = 1\n1 / 0\n")
    with raises("user-function.file-raises", match=r"(?s)ZeroDivisionError.*raises\.py:2"):
        resolve(f"{path}:make")


def test_a_network_without_room_for_its_weights_is_refused_before_it_is_made(
    job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own model is made without that look."""
    needed = sum(parameter.nbytes for parameter in make_model(resolve("lenet")).parameters())
    monkeypatch.setattr("trimaran.machine.detect.free_memory_bytes", lambda: needed)
    check_room(resolve("lenet"), "lenet")
    monkeypatch.setattr("trimaran.machine.detect.free_memory_bytes", lambda: needed - 1)
    with raises("job.no-room", match="weights take 470.2 KiB"):
        check_room(resolve("lenet"), "lenet")
    for look in (lambda: check_job(JobSource(reference="lenet")), lambda: make_plan("lenet", PlanRequest(devices=1))):
        with raises("job.no-room"):
            look()
    check_room(resolve(f"{job_file}:make"), f"{job_file}:make")
