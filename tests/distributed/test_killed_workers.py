"""A worker that loads data and is killed, in a real training: it is named soon, and nothing of the training is left."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.commands.running import trimaran
from tests.distributed.fed_by_workers import PIDS
from tests.distributed.signalled_runs import Run
from tests.ports import free_ports

JOB = Path(__file__).with_name("fed_by_workers.py")
SOON_S = 10.0
SHARED = Path("/dev/shm")
TEMPORARY = "temporary"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan of two replicas, which two workers feed each."""
    folder = tmp_path_factory.mktemp("planned")
    pins = ("--devices", "2", "--dp", "2", "--pp", "1", "--workers", "2", "--execution", "eager")
    done = trimaran("plan", f"{JOB}:make_job", *pins, "--output", "plan.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Where workers are noted, and where temporary files go: nobody else writes there."""
    found = {PIDS: str(tmp_path / "pids"), "TMPDIR": str(tmp_path / TEMPORARY)}
    for folder in found.values():
        Path(folder).mkdir()
    return found


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def workers(folder: Path) -> list[int]:
    """Those that still run."""
    return [int(one.name) for one in (folder / "pids").iterdir() if is_there(int(one.name))]


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def assert_named_and_nothing_left(folder: Path, killed: int, text: str, files: set[str]) -> None:
    """By its number, with the signal and the place in the user's code; `files` were in shared memory before."""
    named = re.search(rf"a worker of rank (\d) that loads data \(process {killed}\) was killed by SIGKILL.*, in ", text)
    assert named, text
    assert "fed_by_workers.py" in text
    assert wait_until(lambda: workers(folder) == [], SOON_S)
    pids = [one.name for one in (folder / "pids").iterdir()]
    assert not [one for one in {one.name for one in SHARED.iterdir()} - files if any(pid in one for pid in pids)]
    assert list((folder / TEMPORARY).rglob("*")) == []


@pytest.mark.timeout(300)
def test_a_killed_worker_of_a_run_is_named_and_leaves_nothing(
    tmp_path: Path, planned: Path, variables: dict[str, str]
) -> None:
    files = {one.name for one in SHARED.iterdir()}
    command = ["trimaran", "train", f"{JOB}:make_job", "--plan", str(planned / "plan.json")]
    run = Run(command, tmp_path, planned, environment=variables)
    try:
        run.wait_for_step(3)
        killed = workers(tmp_path)[0]
        os.kill(killed, signal.SIGKILL)
        start = time.monotonic()
        code, errors = run.end(60)
        assert time.monotonic() - start < SOON_S
        assert code == 5, errors
        assert run.left() == []
        assert_named_and_nothing_left(tmp_path, killed, errors, files)
    finally:
        run.kill()


@pytest.mark.timeout(300)
def test_a_killed_worker_of_a_loop_of_ones_own_is_named_and_leaves_nothing(
    tmp_path: Path, planned: Path, variables: dict[str, str]
) -> None:
    files = {one.name for one in SHARED.iterdir()}
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports())}
    command = ["tests.distributed.fed_by_workers", str(planned / "plan.json")]
    runs = [Run(command, tmp_path, planned, environment=variables | place | {"RANK": str(rank)}) for rank in range(2)]
    try:
        for rank, run in enumerate(runs):
            run.wait_for(lambda file=tmp_path / f"steps{rank}": file.exists() and file.read_text() > "2", "step 3")
        killed = workers(tmp_path)[0]
        os.kill(killed, signal.SIGKILL)
        start = time.monotonic()
        ends = [run.end(60) for run in runs]
        assert time.monotonic() - start < SOON_S
        assert all(code for code, _ in ends)
        assert runs[0].left() == []
        assert_named_and_nothing_left(tmp_path, killed, "".join(errors for _, errors in ends), files)
    finally:
        for run in runs:
            run.kill()
