"""What a parent does with ranks that leave, or that it leaves; each is a process of its own, and no rank trains."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem, ExecutionError
from trimaran.launch import supervise
from trimaran.launch.supervise import LaunchRequest, _ask, _listen, _receive, _StartedRank, launch


@contextlib.contextmanager
def rank_of(command: list[str], folder: Path, number: int = 0) -> Iterator[tuple[_StartedRank, Connection]]:
    """A rank whose process is a command that does not know the pipe, and the rank's end of that."""
    ours, theirs = Pipe()
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield _StartedRank(number=number, process=process, connection=ours, log=folder / "log"), theirs
    finally:
        process.kill()
        process.wait()


def test_leaving_waits_for_nothing_that_the_interrupted_code_holds(tmp_path: Path) -> None:
    """The second signal comes while the parent waits for a rank that it ends."""
    folder = tmp_path / "folder"
    folder.mkdir()
    script = f"""
        import os, signal, subprocess
        from multiprocessing import Pipe
        from pathlib import Path
        from trimaran.launch.supervise import _leave, _StartedRank

        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        rank = _StartedRank(number=0, process=process, connection=Pipe()[0], log=Path("log"))

        def second(number, frame):
            _leave([rank], {str(folder)!r})
            os._exit(7)

        signal.signal(signal.SIGALRM, second)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        process.wait()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == 7
    assert not folder.exists()


def test_a_rank_that_answers_a_parent_that_is_gone_ends_itself(tmp_path: Path) -> None:
    """A command is unread when the parent is killed, so that the answer to it finds the pipe closed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    ours, theirs = Pipe()
    ours.send_bytes(pickle.dumps(("broken", None)))
    ours.send_bytes(pickle.dumps(("stacks", None)))
    script = f"""
        import sys
        from multiprocessing.connection import Connection
        from trimaran.launch.worker import _Parent

        sys.stdin.readline()
        parent = _Parent(Connection({theirs.fileno()}))
        parent.listen("broken", lambda _: 1 / 0)
        parent.listen("stacks", lambda _: parent.send("stacks", "x" * 2**20))
        parent.watch({str(folder)!r})
    """
    rank = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )
    theirs.close()
    ours.close()
    _, errors = rank.communicate("go\n", timeout=60)
    assert rank.returncode == -signal.SIGKILL
    assert "ZeroDivisionError" in errors
    assert "BrokenPipeError" not in errors
    assert not folder.exists()


def test_a_rank_that_dies_before_it_is_asked_ends_the_others(tmp_path: Path) -> None:
    """The other one is in its work, which has no end without it."""
    with rank_of(["false"], tmp_path) as (dead, its), rank_of(["sleep", "60"], tmp_path, number=1) as (other, _):
        its.close()
        _ask(dead, LaunchRequest(rank=0, ranks=2, device="cpu", timeout_s=60.0, python_path=None, work=b""))
        began = time.monotonic()
        with pytest.raises(ExecutionError) as raised:
            _listen([dead, other], None, None, None, None, keeps_logs=False)
        assert time.monotonic() - began < 30.0
    assert (raised.value.code, raised.value.figures["rank"], raised.value.figures["exit_code"]) == ("rank.died", 0, 1)


def test_a_rank_that_has_closed_its_pipe_and_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_LEAVE_S", 0.2)
    with rank_of(["sleep", "60"], tmp_path) as (rank, its):
        its.close()
        _receive(rank, None, None)
        assert rank.failure is not None
        assert rank.failure.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("taken", ["logs", "logs/rank1.log"])
def test_logs_that_cannot_be_written_are_a_problem_of_the_environment(tmp_path: Path, taken: str) -> None:
    """A file is where the folder of logs should be, or a folder where a log should be."""
    if taken == "logs":
        (tmp_path / taken).write_text("")
    else:
        (tmp_path / taken).mkdir(parents=True)
    with pytest.raises(EnvironmentProblem) as raised:
        launch(os.getpid, ranks=2, log_dir=tmp_path / "logs")
    assert raised.value.code == "launch.unwritable"
    assert raised.value.figures["path"] == str(tmp_path / taken)


def test_no_folder_for_temporary_files_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with raises("file.no-temporary-folder", EnvironmentProblem, match="TMPDIR"):
        launch(isinstance, (int,), ranks=1, device="cpu")


def test_a_rank_that_cannot_be_started_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with raises("launch.cannot-start", EnvironmentProblem, match="ulimit", rank=0):
        launch(isinstance, (int,), ranks=2, log_dir=tmp_path / "logs", device="cpu")
