"""Forks behave as the interpreters do that they stand for."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.commands.running import new_trimaran, trimaran
from tests.distributed import duties
from tests.forks.client import Forked, launch, server
from tests.forks.server import fork
from tests.raising import raises

from trimaran.base.errors import ExecutionError
from trimaran.launch import supervise as runtime


def leave(code: object) -> None:
    raise SystemExit(code)


def fail() -> None:
    raise ZeroDivisionError("too far")


def look() -> None:
    sys.stdout.write(f"{Path.cwd()} {sorted(os.environ)} {os.getsid(0) == os.getpid()}")


def hang() -> None:
    """Never end, with a process of its own beside it."""
    child = subprocess.Popen(["sleep", "600"])
    sys.stdout.write(f"{child.pid}\n")
    threading.Event().wait()


def begin(function: object, *arguments: object, folder: Path) -> Forked:
    with (folder / "output").open("wb") as output, Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), output.fileno(), output.fileno())
        return server().fork(function, *arguments, streams=streams, environment={"A": "1"}, folder=folder)  # type: ignore[arg-type]


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3), (None, 0), ("a message", 1)])
def test_exit_codes_are_those_of_an_interpreter(code: object, expected: int, tmp_path: Path) -> None:
    assert begin(leave, code, folder=tmp_path).wait(20.0) == expected


def test_an_exception_is_written_and_ends_with_1(tmp_path: Path) -> None:
    assert begin(fail, folder=tmp_path).wait(20.0) == 1
    assert "ZeroDivisionError: too far" in (tmp_path / "output").read_text()


def test_a_child_has_its_own_folder_variables_and_session(tmp_path: Path) -> None:
    assert begin(look, folder=tmp_path).wait(20.0) == 0
    assert (tmp_path / "output").read_text() == f"{tmp_path} ['A'] True"


def test_what_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    process = begin(hang, folder=tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    deadline = time.monotonic() + 20.0
    while not (told := (tmp_path / "output").read_text()).endswith("\n") and time.monotonic() < deadline:
        pass
    beside = os.pidfd_open(int(told))
    process.end()
    assert process.returncode == -signal.SIGKILL
    assert select.select([beside], [], [], 20.0)[0]
    os.close(beside)


def test_a_process_of_several_threads_is_not_forked() -> None:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="threads is not to be forked"):
            fork(None, [], [])  # type: ignore[arg-type]
    finally:
        ends.set()
        thread.join()


def test_a_command_says_the_same_in_a_fork_and_by_itself(tmp_path: Path) -> None:
    for arguments in (("jobs",), ("plan", "digit"), ("train", "--devices", "0"), ("clusters", "--json")):
        forked, alone = trimaran(*arguments, cwd=tmp_path), new_trimaran(*arguments, cwd=tmp_path)
        assert (forked.returncode, forked.stdout, forked.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_a_launch_of_forks_is_a_launch(tmp_path: Path) -> None:
    """Results, a death, and the log of what a rank said; afterwards a launch starts interpreters again."""
    started = runtime._start
    assert launch(duties.add_ranks, ranks=3, log_dir=tmp_path) == [3.0, 3.0, 3.0]
    with raises("rank.died", ExecutionError, match="SIGKILL", rank=1):
        launch(duties.die_beside_hanging, (1,), ranks=2, log_dir=tmp_path, on_event=lambda rank, event: None)
    with raises("rank.raised", ExecutionError, match="ZeroDivisionError"):
        launch(duties.stumble, (1,), ranks=2, log_dir=tmp_path)
    assert "so far, so good" in (tmp_path / "rank0.log").read_text()
    assert runtime._start is started
