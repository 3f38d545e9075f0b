"""The user's part of an exception: the lines of their code that led to it.

A job calls a person's code from deep inside ours and torch's. What that person needs of a traceback is where in their
own files it was; the rest is shown where `TRIMARAN_DEBUG` is set.
"""

import os
import signal
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.files import shown_path
from trimaran.base.outcome import note_asked
from trimaran.base.signals import Interrupted

DEBUG = "TRIMARAN_DEBUG"

_PACKAGES = tuple(f"{Path(__file__).parents[2] / name}{os.sep}" for name in ("trimaran", "trimaran_studies"))
_STANDARD = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "scripts"))
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_FRAMES = 3
_LONGEST = 300


def debugging() -> bool:
    """Whether the environment asks for whole tracebacks."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def summary(error: BaseException) -> str:
    """Type and text of an exception, on one line.

    Example:
        >>> summary(ValueError("too  long"))
        'ValueError: too long'
    """
    text = " ".join(str(error).split())
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"{type(error).__name__}{f': {short}' if short else ''}"


def told(error: BaseException) -> str:
    """Type and text of an exception, and below them the innermost lines of the user's code that led to it."""
    return "\n".join([summary(error), *user_lines(error)])


def user_lines(error: BaseException) -> list[str]:
    """The innermost lines of the user's code, indented, each place with its code; empty where there are none."""
    return frame_lines(_user_frames(error))


def frame_lines(frames: Iterable[traceback.FrameSummary]) -> list[str]:
    """The same of the frames of a thread or of an exception.

    Args:
        frames: of whosever code, innermost last
    """
    lines = []
    for frame in [frame for frame in frames if is_users(frame.filename)][-_FRAMES:]:
        lines.append(f"    {_shown(frame.filename)}:{frame.lineno}, in {frame.name}")
        if frame.line:
            lines.append(f"        {frame.line}")
    return lines


def place_of(error: BaseException) -> str:
    """The innermost line of the user's code, as "file.py:12"; empty where there is none."""
    frames = _user_frames(error)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def innermost_lines(error: BaseException) -> list[str]:
    """The innermost lines of whosever code, for an exception that has none of the user's."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return [f"    {_shown(frame.filename)}:{frame.lineno}, in {frame.name}: {frame.line}" for frame in frames]


def raised_by_user(error: BaseException) -> bool:
    """Whether the line that raised is the user's own, and not one of a library that it called."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and is_users(frames[-1].filename)


_asked: ContextVar[str] = ContextVar("asked", default="")
"""What of the user's code is called; empty: none."""


@contextmanager
def users(what: str, *, code: str = "user.raised") -> Iterator[None]:
    """Around a call of the user's code that says what is to be trained: what it raises is wrong input, with its lines.

    Args:
        what: is called, for the message, as "Job.model"
        code: of the error

    Raises:
        InputError: it raised, or ended the process
    """
    before = _asked.set(what)
    note_asked(what)
    try:
        yield
    except TrimaranError:
        raise
    except Interrupted:
        raise
    except (SystemExit, KeyboardInterrupt) as error:
        raise left(what, error) from error
    except Exception as error:
        started = any(frame.name in _STARTS for frame in traceback.extract_tb(error.__traceback__))
        raise InputError(f"{what} failed: {told(error)}{_guarded(error) if started else ''}", code=code) from error
    finally:
        _asked.reset(before)
        note_asked(_asked.get())


def left(what: str, error: SystemExit | KeyboardInterrupt) -> InputError:
    """That the user's code ended the process.

    Args:
        what: of theirs, for the message
        error: that it raised
    """
    code = error.code if isinstance(error, SystemExit) else 128 + signal.SIGINT
    number = code if isinstance(code, int) else int(code is not None)
    said = f"{what} ended the process with exit code {number}: {told(error)}{_guarded(error)}"
    return InputError(said, code="user.exited", exited_with=number)


_STARTS = frozenset({"init_process_group", "start_processes"})
"""Functions of torch that begin a training of several ranks."""

_GUARD = 'put the code that trains under `if __name__ == "__main__":`, so that the file can be imported'


def _guarded(error: BaseException) -> str:
    """The advice, where a file did it while it was imported."""
    return f"\n{_GUARD}" if any(frame.name == "<module>" for frame in _user_frames(error)) else ""


def refuse_training(how: str) -> None:
    """Refuse to train where the user's code is asked for a job: each look at the job, in every rank, would train.

    Args:
        how: it begins, as "trimaran.init"

    Raises:
        InputError: with the line
    """
    asked = _asked.get()
    if asked:
        lines = frame_lines(traceback.extract_stack())
        raise InputError("\n".join([f"{asked} starts a training: {how}", *lines, _GUARD]), code="user.trains", how=how)


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Of the exception, or where it has none, of what it was raised from."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if is_users(frame.filename)]
        if frames:
            return frames
        cause = cause.__cause__ or cause.__context__
    return []


def is_users(filename: str) -> bool:
    """Whether a file is the user's own: none of Trimaran, of the standard library or of an installed package.

    Args:
        filename: of a frame of Python
    """
    # What is installed may lie below the folder of the standard library, and both below the user's own.
    if filename.startswith((*_PACKAGES, "<", *_STANDARD)):
        return False
    return not _INSTALLED.intersection(Path(filename).parts)


def _shown(filename: str) -> str:
    return shown_path(Path(filename))
