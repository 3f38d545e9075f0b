"""Failures of the ranks of one launch, and which of them is the cause.

When one rank fails, those that wait for it fail too, and their error ("connection closed by peer") may arrive first. So
a failure says whether a peer has caused it, and the cause is the first one that no peer has caused.
"""

import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from trimaran.base.errors import ExecutionError, InputError, TrimaranError
from trimaran.base.files import read_end, shown_path
from trimaran.base.user_errors import (
    DEBUG,
    debugging,
    ends_process,
    innermost_lines,
    left,
    raised_by_user,
    summary,
    user_lines,
)
from trimaran.launch.activity import ACTIVITY
from trimaran.launch.memory import Limit, exhausted, ran_out, refused_memory

LINES_OF_LOG = 20

FATAL = "Fatal Python error:"
"""How the interpreter begins to tell that a signal is ending it: then come stacks, and a list of modules."""

# Texts of torch's back ends where the other end of a connection is gone or silent.
_PEER_PHRASES = (
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "connection refused",
    "timed out",
    "nccl",
    "socket",
    "remote",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The end of one rank.

    Attributes:
        rank: which one
        error: that it raised, where it is a `TrimaranError`
        text: type and message of any other exception
        lines: of the user's code that led to it, or where there are none, the innermost ones of any code
        trace: the whole traceback of any exception
        exit_code: of a process that ended without a message; negative: the signal that killed it
        because_of_peer: another rank is the cause
        steps: training steps that the rank had done; None: not known
        asked: of the user's code as the process ended
    """

    rank: int
    error: TrimaranError | None = None
    text: str = ""
    lines: tuple[str, ...] = ()
    trace: str = ""
    exit_code: int | None = None
    because_of_peer: bool = False
    steps: int | None = None
    asked: str = ""


def to_failure(rank: int, error: BaseException) -> Failure:
    """The failure of a rank that an exception ends.

    Args:
        rank: number of the rank
        error: what was raised
    """
    ours = error if isinstance(error, TrimaranError) else left(error) if ends_process(error) else None
    refused = ran_out(error)
    if refused is not None:
        ours = refused_memory(rank, refused)
    return Failure(
        rank=rank,
        error=ours,
        text=summary(error),
        lines=() if ours is not None else (*_notes(error), *(user_lines(error) or innermost_lines(error))),
        trace="".join(traceback.format_exception(error)),
        because_of_peer=is_peer_failure(error),
        steps=ACTIVITY.steps,
    )


def _notes(error: BaseException) -> list[str]:
    return [f"    {note}" for note in getattr(error, "__notes__", ())]


def is_peer_failure(error: BaseException) -> bool:
    """Whether an exception only says that another rank is gone.

    Args:
        error: raised by torch, or about a lost peer
    """
    if isinstance(error, TrimaranError):
        return bool(error.figures.get("lost_peer"))
    if not isinstance(error, RuntimeError) or raised_by_user(error):
        return False
    return any(phrase in str(error).lower() for phrase in _PEER_PHRASES)


def find_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that explains the others.

    Args:
        failures: at least one, in order of arrival

    Returns:
        The first that is not because of a peer; else the first.
    """
    return next((failure for failure in failures if not failure.because_of_peer), failures[0])


def to_error(failure: Failure, log: Path, *, kept: bool, killed_for_memory: Limit | None = None) -> TrimaranError:
    """The error that the parent raises for a failure.

    Args:
        failure: the cause
        log: log file of its rank
        kept: the log outlives the launch, so that the error may name it
        killed_for_memory: the kernel has killed a process meanwhile, because this limit was reached; None: none

    Returns:
        The error of the rank, with the rank among its figures; else an `ExecutionError` with the lines of the user's
        code, or where the process ended without a message, with the end of the log.
    """
    if failure.error is not None:
        failure.error.figures.setdefault("rank", failure.rank)
        if failure.steps:
            failure.error.figures.setdefault("step", failure.steps)
        failure.error.add_note(f"raised on rank {failure.rank}" + (f"; its log is {shown_path(log)}" if kept else ""))
        return _with_trace(failure.error, failure)
    named = {"log": str(log)} if kept else {}
    if failure.exit_code is None:
        whole = f"The whole traceback is in {shown_path(log)}" if kept else f"{DEBUG}=1 shows the whole traceback"
        message = "\n".join([f"rank {failure.rank} raised {failure.text}", *failure.lines, whole])
        raised = {"raised": failure.text, "step": failure.steps, **named}
        return _with_trace(ExecutionError(message, code="rank.raised", rank=failure.rank, **raised), failure)
    if killed_for_memory is not None and failure.exit_code == -signal.SIGKILL:
        told = f"rank {failure.rank} was killed by SIGKILL, and the kernel has killed a process because memory ran out"
        return exhausted(told, failure.rank, killed_for_memory)
    before = "" if failure.exit_code < 0 else " before its work was done"
    asked = f", in {failure.asked}" if failure.asked else ""
    what = f"rank {failure.rank} {describe_exit(failure.exit_code)}{before}{asked}. {_end_of_log(log, kept=kept)}"
    if asked and not failure.exit_code:
        # No failure, which might be another one next time: code that takes the work for done.
        return InputError(what, code="rank.left", exited_with=0, rank=failure.rank, step=failure.steps)
    return ExecutionError(
        what,
        code="rank.died",
        rank=failure.rank,
        exit_code=failure.exit_code,
        step=failure.steps,
        **named,
    )


def _with_trace(error: TrimaranError, failure: Failure) -> TrimaranError:
    if debugging() and failure.trace:
        error.add_note(f"on rank {failure.rank}:\n{failure.trace}")
    return error


def describe_exit(code: int | None) -> str:
    """How a process has ended, for people.

    Args:
        code: exit code; negative: the signal that killed it; None: not known

    Example:
        >>> describe_exit(3), describe_exit(-15)
        ('ended with exit code 3', 'was killed by SIGTERM')
    """
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    known = -code in list(signal.Signals)
    text = f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
    return f"{text} (by hand, or by the system when memory ran out)" if code == -signal.SIGKILL else text


def _end_of_log(log: Path, *, kept: bool) -> str:
    lines = _telling(read_end(log).splitlines()) if log.exists() else []
    if not lines:
        return f"Its log {shown_path(log)} is empty" if kept else "It printed nothing"
    title = f"The end of its log {shown_path(log)}:" if kept else "The end of what it printed:"
    return "\n".join([title, *(f"    {line}" for line in lines)])


def _telling(lines: list[str]) -> list[str]:
    """The last lines of a log; of a crash what was printed just before it and the innermost calls of its thread."""
    fatal = max((number for number, line in enumerate(lines) if line.startswith(FATAL)), default=None)
    if fatal is None:
        return lines[-LINES_OF_LOG:]
    before, after = lines[max(0, fatal - LINES_OF_LOG // 4) : fatal + 1], lines[fatal + 1 :]
    current = next((number for number, line in enumerate(after) if line.startswith("Current thread")), 0)
    # A blank line ends its stack; then come other stacks, or the modules.
    stack = takewhile(str.strip, after[current:])
    return [*before, *islice(stack, LINES_OF_LOG - len(before))]
