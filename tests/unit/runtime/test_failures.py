"""Which of several failures is the cause."""

from pathlib import Path

import pytest

from trimaran.base.errors import ExecutionError, InputError
from trimaran.launch.failures import LINES_OF_LOG, Failure, find_cause, is_peer_failure, to_error


def test_the_cause_is_the_first_that_is_not_because_of_a_peer() -> None:
    complaint = Failure(rank=0, text="closed", because_of_peer=True)
    killed = Failure(rank=2, exit_code=-9)
    assert find_cause([complaint, killed]) is killed
    assert find_cause([complaint]) is complaint


def test_complaints_about_a_peer_are_known() -> None:
    assert is_peer_failure(RuntimeError("[pair.cc:1] Read error: Connection reset by peer"))
    assert is_peer_failure(ExecutionError("rank 0 lost contact", lost_peer=True))
    assert not is_peer_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_peer_failure(ExecutionError("the loss is nan"))
    assert not is_peer_failure(ValueError("timed out"))


def test_the_end_of_the_log_is_in_the_message(tmp_path: Path) -> None:
    log = tmp_path / "rank3.log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    error = to_error(Failure(rank=3, exit_code=-11), log, kept=True)
    assert isinstance(error, ExecutionError)
    assert error.code == "rank.died"
    assert "SIGSEGV" in str(error)
    assert f"line {99 - LINES_OF_LOG + 1}" in str(error)
    assert f"line {99 - LINES_OF_LOG}\n" not in str(error)
    assert error.figures["rank"] == 3


def test_an_error_of_ours_is_raised_as_it_is(tmp_path: Path) -> None:
    own = InputError("no", batch=3)
    error = to_error(Failure(rank=1, error=own), tmp_path / "rank1.log", kept=True)
    assert error is own
    assert error.figures == {"batch": 3, "rank": 1}


def test_of_a_crash_the_cause_and_the_innermost_calls_are_in_the_message(tmp_path: Path) -> None:
    stack = [f'  File "/code.py", line {number} in f{number}' for number in range(40)]
    lines = ["epoch 3", "double free or corruption (out)", "Fatal Python error: Aborted", "", "Thread 0x2 (idle):"]
    lines += ['  File "/other.py", line 1 in wait', "", "Current thread 0x1 (most recent call first):", *stack]
    log = tmp_path / "rank0.log"
    log.write_text("\n".join([*lines, "", "Extension modules: numpy (total: 1)"]))
    error = to_error(Failure(rank=0, exit_code=-6), log, kept=True)
    for told in ("SIGABRT", "double free or corruption", "Fatal Python error: Aborted", "in f0", "in f10"):
        assert told in str(error)
    for left in ("Extension modules", "other.py", "in f39"):
        assert left not in str(error)


def test_a_log_that_is_not_kept_is_not_named(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    silent = to_error(Failure(rank=0, exit_code=3), log, kept=False)
    log.write_text("so far, so good")
    ended = to_error(Failure(rank=0, exit_code=3), log, kept=False)
    raised = to_error(Failure(rank=0, error=InputError("no")), log, kept=False)
    assert "It printed nothing" in str(silent)
    assert "The end of what it printed:\n    so far, so good" in str(ended)
    for error in (silent, ended, raised):
        assert "log" not in error.figures
        assert str(log) not in " ".join([str(error), *getattr(error, "__notes__", [])])


def test_what_the_user_raises_is_no_complaint_about_a_peer() -> None:
    """Whatever its words: the others lose contact because of it."""
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("remote socket timed out")
    assert not is_peer_failure(caught.value)
