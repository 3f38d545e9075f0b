"""A run that fails says why with its exit code, notes it in its run directory, and leaves no process."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.commands.running import trimaran
from tests.distributed.signalled_runs import Run, plan_for_two
from tests.forks.client import server

JOBS = Path(__file__).parents[1] / "commands" / "faulty_jobs.py"


def plan(folder: Path, job: str) -> Path:
    """The folder, with a plan that takes both devices; what it costs is measured."""
    return plan_for_two(folder, f"{JOBS}:{job}", f"{job}.json")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plan(tmp_path_factory.mktemp("planned"), "never_ends")


@pytest.fixture
def start(tmp_path: Path, planned: Path) -> Iterator[Callable[..., Run]]:
    """Trainings that have begun, and have done an epoch."""
    runs: list[Run] = []

    def begin(*options: str) -> Run:
        command = ["trimaran", "train", f"{JOBS}:never_ends", "--plan", str(planned / "never_ends.json"), *options]
        run = Run(command, tmp_path, planned)
        runs.append(run)
        run.wait_for(lambda: run.epochs() and len(run.ranks()) >= 2, "training")
        return run

    yield begin
    for run in runs:
        run.kill()


def children() -> list[str]:
    """Processes that this one has started and not waited for."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.sweep
def test_a_loss_that_is_not_a_number_ends_the_run(tmp_path: Path) -> None:
    """Forked, as no signal is in it: the server would know of a rank that is left."""
    planned = plan(tmp_path, "nan_loss")
    before = set(server().call(children))
    done = trimaran("train", f"{JOBS}:nan_loss", "--plan", "nan_loss.json", cwd=planned)
    assert done.returncode == 5, done.stderr
    assert "step 0 is nan" in done.stderr
    assert "Traceback" not in done.stderr
    (file,) = planned.glob("runs/*/run.json")
    note = json.loads(file.read_text())
    assert (note["status"], note["code"]) == ("failed", "loss.not-finite")
    assert set(server().call(children)) <= before


def test_control_c_ends_all_processes(start: Callable[..., Run]) -> None:
    run = start()
    run.signal(signal.SIGINT)
    code, errors = run.end()
    assert code == 130, errors
    assert "trimaran: SIGINT ended the training after step" in errors
    assert run.note()["status"] == "stopped"
    assert run.left() == []


def test_a_killed_rank_is_named(start: Callable[..., Run]) -> None:
    run = start()
    os.kill(run.ranks()[-1], signal.SIGKILL)
    code, errors = run.end()
    assert code == 5, errors
    assert "SIGKILL" in errors
    assert run.note()["status"] == "failed"
    assert run.left() == []


def test_a_stopped_rank_is_named_and_its_process_ends(start: Callable[..., Run]) -> None:
    run = start("--hang-timeout", "3")
    stopped = run.ranks()[-1]
    os.kill(stopped, signal.SIGSTOP)
    code, errors = run.end()
    assert code == 5, errors
    assert f"its process {stopped} is stopped by a signal" in " ".join(errors.split())
    assert (run.note()["status"], run.note()["code"]) == ("failed", "rank.hangs")
    assert run.left() == []
