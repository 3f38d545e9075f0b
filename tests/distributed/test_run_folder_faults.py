"""A run directory that fills, cannot be written or goes: noticed at once, or the training goes on and loses nothing."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.distributed.signalled_jobs import BATCHES, make_model
from tests.distributed.signalled_runs import Run, train

from trimaran.features.training.run_record import OTHER_FILES_BYTES, RunDirectory, RunRecord

SOON_S = 100.0
DISK_BYTES = OTHER_FILES_BYTES + 8 * 2**20

Start = Callable[..., Run]


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], None]]:
    """Makes a folder read-only, also for root."""
    folders: list[Path] = []

    def make(folder: Path) -> None:
        mount("--bind", str(folder), str(folder))
        folders.append(folder)
        mount("-o", "remount,ro,bind", str(folder))

    yield make
    for folder in reversed(folders):
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return filler


@pytest.fixture
def start(tmp_path: Path, planned_pair: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(job: str, *options: str, fault: object = "") -> Run:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        runs.append(Run(train(job, planned_pair, *options), work, planned_pair, str(fault)))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()


def refused_before_planning(job: str, runs: Path, start: Start, code: int = 4) -> str:
    started = start(job, "--runs", str(runs), "--json")
    ended, errors = started.end(SOON_S)
    assert ended == code, errors
    assert "Traceback" not in errors
    assert started.left() == []
    return errors


def run_of(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_a_read_only_folder_is_noticed_before_planning(
    start: Start, tmp_path: Path, read_only: Callable[[Path], None]
) -> None:
    """The model alone would take a minute."""
    (tmp_path / "runs").mkdir()
    read_only(tmp_path / "runs")
    assert "Read-only file system" in refused_before_planning("slow_model", tmp_path / "runs", start)


def test_a_folder_that_is_a_file_is_noticed_before_planning(start: Start, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert "Not a directory" in refused_before_planning("slow_model", tmp_path / "runs", start)


def test_too_little_room_is_noticed_before_planning(start: Start, disk: Path) -> None:
    errors = refused_before_planning("large", disk, start)
    assert "12.0 MiB free, and the run writes about" in errors
    assert list(disk.iterdir()) == []


def test_a_disk_that_fills_ends_no_training_and_loses_no_weights(start: Start, disk: Path, tmp_path: Path) -> None:
    """Weights go elsewhere, and all that is lost is named; what was written before stays as it was, whole."""
    counter = tmp_path / "counter"
    run = start("talkative", "--runs", str(disk / "runs"), fault=counter)
    run.wait_for(counter.exists, "step")
    fill(disk)
    full_at = int(counter.read_text() or 0)
    run.wait_for(lambda: int(counter.read_text() or 0) > full_at + 3 * BATCHES, "steps on a full disk")
    run.signal(signal.SIGTERM)
    code, errors = run.end()
    # What could not be written is said; the code is that of the signal.
    assert code == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert "checkpoints: the state after step" in errors
    assert "logs/rank0.log: what the rank printed from then on is lost: No space left on device" in errors
    assert "run.json: " in errors
    folder = run_of(disk / "runs")
    weights = run.folder / f"{folder.name}-model.safetensors"
    assert f"THE WEIGHTS ARE IN {weights}" in errors
    make_model().load_state_dict(load_file(weights))
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, len(rows) + 1))
    assert run.left() == []


def test_weights_that_cannot_be_written_into_the_run_directory_go_elsewhere(
    start: Start, tmp_path: Path, read_only: Callable[[Path], None]
) -> None:
    run = start("plain")
    run.wait_for_step()
    folder = run.run_dir()
    read_only(folder)
    run.signal(signal.SIGTERM)
    code, errors = run.end()
    assert code == 128 + signal.SIGTERM, errors
    weights = run.folder / f"{folder.name}-model.safetensors"
    assert f"THE WEIGHTS ARE IN {weights}" in errors
    assert "run.json" in errors
    assert "Traceback" not in errors
    make_model().load_state_dict(load_file(weights))
    assert run.left() == []


def test_a_deleted_run_directory_loses_its_logs_only(start: Start) -> None:
    run = start("plain")
    run.wait_for_step(2 * BATCHES + 1)
    folder = run.run_dir()
    while folder.exists():  # a line may be written to it while it goes
        shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.5)
    run.signal(signal.SIGTERM)
    code, errors = run.end()
    assert code == 128 + signal.SIGTERM, errors
    assert "logs: the run directory was deleted while it was in use" in errors
    assert "Traceback" not in errors
    note = json.loads((folder / "run.json").read_text())
    assert note["status"] == "stopped"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, note["epoch"]))
    assert len(rows) >= 2
    make_model().load_state_dict(load_file(folder / "model.safetensors"))
    assert {"plan.json", "program.txt", "report.json"} <= {path.name for path in folder.iterdir()}
    assert run.left() == []


def test_a_note_that_cannot_be_written_does_not_hide_the_cause(
    start: Start, tmp_path: Path, read_only: Callable[[Path], None]
) -> None:
    flag = tmp_path / "flag"
    run = start("raises_late", fault=flag)
    run.wait_for_step()
    read_only(run.run_dir())
    flag.touch()
    code, errors = run.end()
    assert code == 5, errors
    assert "raised LookupError: the cause" in errors
    assert "run.json" in errors
    assert "Traceback" not in errors
    assert run.left() == []


def test_a_job_stays_in_the_folder_of_runs(start: Start, tmp_path: Path) -> None:
    run = start("leaves_its_folder", "--epochs", "1")
    code, errors = run.end()
    assert code == 0, errors
    assert [path.name[:5] for path in (run.folder / "runs").iterdir()] == ["left-"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work"]


def test_lines_of_metrics_come_whole_once_there_is_room_again(disk: Path) -> None:
    run = RunDirectory(path=disk)
    notes = RunRecord(run)
    notes.begin(job="job", strategy="dp2")
    notes.add_metrics({"epoch": 1})
    filler = fill(disk)
    for epoch in range(2, 1000):
        notes.add_metrics({"epoch": epoch, "text": "x" * 100})
    assert "metrics.jsonl" in notes.problems
    # No part of a line.
    assert [json.loads(line) for line in run.metrics.read_text().splitlines()][0] == {"epoch": 1}  # noqa: RUF015
    os.unlink(filler)  # noqa: PTH108 as rm does
    notes.add_metrics({"epoch": 1000})
    assert notes.problems == {}
    assert [json.loads(line)["epoch"] for line in run.metrics.read_text().splitlines()] == list(range(1, 1001))
