"""What a run writes where folders are gone or cannot be made."""

import errno
import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.files import given_from_here, read_bytes, write_whole
from trimaran.features.training.run_record import (
    RunDirectory,
    RunRecord,
    Stopped,
    check_runs,
    create_run_directory,
    save_weights,
)
from trimaran.features.training.train import weights_of
from trimaran.jobs.resolve import JobSource


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, which does not exist any more."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    return folder


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("absolute", [True, False])
def test_weights_are_written_where_the_current_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    """Into the run directory where that is elsewhere, else into the folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = RunDirectory(path=tmp_path / "run" if absolute else Path("runs/run"))
    if absolute:
        run.path.mkdir()
    weights = {"w": torch.arange(4.0)}
    path, problem = save_weights(weights, run)
    assert path == (run.model if absolute else tmp_path / "run-model.safetensors")
    assert bool(problem) != absolute
    assert torch.equal(load_file(path)["w"], weights["w"])


@pytest.mark.usefixtures("gone")
def test_the_runs_of_a_current_directory_that_is_gone_are_refused() -> None:
    with pytest.raises(EnvironmentProblem):
        check_runs(None)


def test_a_folder_of_runs_whose_name_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem):
        check_runs(tmp_path / ("x" * 300))
    with pytest.raises(EnvironmentProblem):
        create_run_directory("job", parent=tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_written_of_a_stopped_run_does_not_say_that_the_training_is_done(tmp_path: Path) -> None:
    notes = RunRecord(create_run_directory("job", parent=tmp_path))
    notes.problems["logs/rank0.log"] = "No space left on device"
    notes.stop(Stopped(signal=15, step=7, epoch=1, loss=None), {})
    # Its exit code is that of the signal.
    notes.check()
    assert "logs/rank0.log: No space left on device" in notes.unwritten
    notes.finish({})
    with pytest.raises(EnvironmentProblem, match="the training is done") as raised:
        notes.check()
    assert "logs/rank0.log: No space left on device" in raised.value.message


def test_room_that_cannot_be_found_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder goes between two looks at it."""

    def gone(folder: Path) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(folder))

    monkeypatch.setattr("shutil.disk_usage", gone)
    with raises("run.unknown-room", EnvironmentProblem, match="--runs FOLDER"):
        check_runs(tmp_path, 10)


def test_a_run_directory_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a job may go to another folder."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with given_from_here():
        os.chdir("elsewhere")
        check_runs(Path("runs"), 10)
        run = create_run_directory("job", parent=Path("runs"))
        assert run.path.parent == tmp_path / "runs"
        assert run.shown == f"runs/{run.path.name}"
        write_whole(Path("plan.json"), b"{}")
        assert read_bytes(Path("plan.json")) == b"{}"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "plan.json").is_file()


def test_the_size_of_the_weights_of_a_users_file_is_asked_without_tensors_that_lose_their_content(
    tmp_path: Path,
) -> None:
    """Nothing in it is made where tensors have no content; the size of a published network is known."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom trimaran.jobs.resolve import resolve\nX = torch.ones(2)\nMADE = []\n"
        "def job():\n    MADE.append(torch.ones(2))\n    return resolve('digits')\n"
    )
    weights_of(JobSource(reference=f"{file}:job"))
    mine = sys.modules["trimaran_user_mine"]
    assert {one.device.type for one in (mine.X, *mine.MADE)} == {"cpu"}
    assert (weights_of(JobSource(reference="vgg16")) or 0) > 4 * 130e6
