"""A run that fails says why with its exit code, notes it in its run directory, and leaves no process."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.commands.running import trimaran
from tests.forks.client import server

JOBS = Path(__file__).parents[1] / "commands" / "faulty_jobs.py"
DEADLINE_S = 90.0


class Run:
    """`trimaran train` in a process whose descendants can be found by a mark in their environment."""

    def __init__(self, job: str, folder: Path, planned: Path, *options: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "trimaran", "train", f"{JOBS}:{job}"),
                *("--plan", str(planned / f"{job}.json"), *options),
            ],
            cwd=folder,
            env=os.environ | {"TRIMARAN_CACHE": f"{planned}-cache", "TRIMARAN_TEST_MARK": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def ranks(self) -> list[int]:
        """Processes of the training, once it has begun."""
        return [pid for pid in self.processes() if pid != self.process.pid]

    def wait_until_training(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.note().get("status") == "running" and len(self.ranks()) >= 2:
                return
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.1)
        raise AssertionError(f"no training within {DEADLINE_S:.0f} s: {self.note()}, {self.processes()}")

    def wait_for_epoch(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not list(self.folder.glob("runs/*/metrics.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def note(self) -> dict[str, str]:
        files = list(self.folder.glob("runs/*/run.json"))
        return json.loads(files[0].read_text()) if files else {}

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans that take both devices; what they cost is measured."""
    folder = tmp_path_factory.mktemp("planned")
    for job in ("nan_loss", "never_ends"):
        pins = ("--devices", "2", "--dp", "2", "--pp", "1", "--execution", "eager")
        done = trimaran("plan", f"{JOBS}:{job}", *pins, "--output", f"{job}.json", cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def start(tmp_path: Path, planned: Path) -> Iterator[object]:
    runs: list[Run] = []

    def begin(job: str, *options: str) -> Run:
        runs.append(Run(job, tmp_path, planned, *options))
        return runs[-1]

    yield begin
    for run in runs:
        for pid in run.processes():
            os.kill(pid, signal.SIGKILL)
        run.process.communicate()


def assert_nothing_left(run: Run) -> None:
    deadline = time.monotonic() + 10
    while run.processes() and time.monotonic() < deadline:
        pass
    assert run.processes() == []


def children() -> list[str]:
    """Processes that this one has started and not waited for."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_a_loss_that_is_not_a_number_ends_the_run(planned: Path) -> None:
    """Forked, as no signal is in it: the server would know of a rank that is left."""
    before = set(server().call(children))
    done = trimaran("train", f"{JOBS}:nan_loss", "--plan", "nan_loss.json", cwd=planned)
    assert done.returncode == 5, done.stderr
    assert "step 0 is nan" in done.stderr
    assert "Traceback" not in done.stderr
    (file,) = planned.glob("runs/*/run.json")
    note = json.loads(file.read_text())
    assert (note["status"], note["code"]) == ("failed", "loss.not-finite")
    assert set(server().call(children)) <= before


def test_control_c_ends_all_processes(start) -> None:  # type: ignore[no-untyped-def]
    run = start("never_ends")
    run.wait_until_training()
    run.wait_for_epoch()
    run.process.send_signal(signal.SIGINT)
    code, errors = run.end()
    assert code == 130, errors
    assert "trimaran: SIGINT ended the training after step" in errors
    assert run.note()["status"] == "stopped"
    assert_nothing_left(run)


def test_a_killed_rank_is_named(start) -> None:  # type: ignore[no-untyped-def]
    run = start("never_ends")
    run.wait_until_training()
    os.kill(run.ranks()[-1], signal.SIGKILL)
    code, errors = run.end()
    assert code == 5, errors
    assert "SIGKILL" in errors
    assert run.note()["status"] == "failed"
    assert_nothing_left(run)


def test_a_stopped_rank_is_named_and_its_process_ends(start) -> None:  # type: ignore[no-untyped-def]
    run = start("never_ends", "--hang-timeout", "3")
    run.wait_until_training()
    stopped = run.ranks()[-1]
    os.kill(stopped, signal.SIGSTOP)
    code, errors = run.end()
    assert code == 5, errors
    assert f"its process {stopped} is stopped by a signal" in " ".join(errors.split())
    assert (run.note()["status"], run.note()["code"]) == ("failed", "rank.hangs")
    assert_nothing_left(run)
