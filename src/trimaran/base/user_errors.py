"""The user's part of an exception: the lines of their code that led to it.

A job calls a person's code from deep inside ours and torch's. What that person needs of a traceback is where in their
own files it was; the rest is shown where `TRIMARAN_DEBUG` is set.
"""

import functools
import itertools
import os
import re
import signal
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.files import shown_path
from trimaran.base.outcome import asked_always, note_asked
from trimaran.base.signals import Interrupted

Result = TypeVar("Result")

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


def frames_written(written: bytes) -> list[traceback.FrameSummary]:
    """The calls of a thread, innermost last, as `faulthandler` writes them down."""
    calls = [found for found in map(_CALL.match, written.decode(errors="replace").splitlines()) if found is not None]
    # A file's name is written in ASCII.
    names = [_ESCAPED.sub(lambda code: chr(int(code[1][1:], 16)), one[1]) for one in calls]
    pairs = zip(reversed(names), reversed(calls), strict=True)
    return [traceback.FrameSummary(name, int(one[2]), one[3]) for name, one in pairs]


_CALL = re.compile(r'  File "(.*)", line (\d+) in (.*)$')
_ESCAPED = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


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
def asking(what: str, *of: object) -> Iterator[None]:
    """Around a call of the user's code whose exceptions are for whoever asked: how it ends the process is never lost.

    Args:
        what: is called, for people, as "Job.loss"; empty: any code of the job
        of: the objects that are called, whose files and lines are told too
    """
    what = named(what, *of) or asked_always() or "the job"
    before = _asked.set(what)
    note_asked(what)
    known = len(sys.modules)
    try:
        yield
    except BaseException as error:
        if ends_process(error) and not hasattr(error, _ASKED):
            setattr(error, _ASKED, what)
        raise
    finally:
        if len(sys.modules) > known:
            _imported.update(dict.fromkeys(itertools.islice(sys.modules, known, None)))
        _asked.reset(before)
        note_asked(_asked.get())


_imported: dict[str, None] = {}


def imported_packages() -> tuple[str, ...]:
    """The modules of installed packages that were imported while code of the user's was asked, in that order."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in _imported}
    return tuple(name for name, file in files.items() if file and _INSTALLED.intersection(Path(file).parts))


@contextmanager
def users(
    what: str,
    *of: object,
    code: str = "user.raised",
    said: Callable[[Exception], Exception] | None = None,
) -> Iterator[None]:
    """Around a call of the user's code that says what is to be trained: what it raises is wrong input, with its lines.

    Args:
        what: is called, for the message, as "Job.model"
        of: see `asking`
        code: of the error
        said: makes another one of what was raised; None: it is told that it failed

    Raises:
        InputError: it raised
    """
    with asking(what, *of):
        try:
            yield
        except TrimaranError:
            raise
        except Exception as error:
            started = any(frame.name in _STARTS for frame in traceback.extract_tb(error.__traceback__))
            text = f"{what} failed: {told(error)}{_guarded(error) if started else ''}"
            raise (InputError(text, code=code) if said is None else said(error)) from error


def attempted(what: str, call: Callable[[], Result], otherwise: Result, *of: object) -> Result:
    """What the user's code answers; otherwise, where it raises on what it may not be made for."""
    try:
        with asking(what, *of):
            return call()
    except Exception:  # noqa: BLE001 - whatever it is
        return otherwise


_ASKED = "asked_by_trimaran"


def ends_process(error: BaseException) -> bool:
    """Whether code of the user's, and no signal that came from outside, ends the process with this."""
    ours = isinstance(error, Exception | Interrupted | GeneratorExit)
    return not ours and bool(hasattr(error, _ASKED) or _asked.get() or user_lines(error))


def left(error: BaseException) -> InputError:
    """That the user's code ended the process, of what it raised."""
    what, said = getattr(error, _ASKED, "your code"), f"{told(error)}{_guarded(error)}"
    ended = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else getattr(error, "code", 1)
    number = ended if isinstance(ended, int) else int(ended is not None)
    return InputError(
        f"{what} ended the process with exit code {number}: {said}", code="user.exited", exited_with=number
    )


def named(what: str, *of: object) -> str:
    """What is asked, with where it begins; for `asking` in each step, which then need not look.

    Args:
        what: is called, for people
        of: see `asking`
    """
    places = [place for place in map(defined_at, of) if place]
    return f"{what} ({', '.join(places)})" if places else what


def defined_at(what: object) -> str:
    """Where the user's code of an object that is called, or read, begins, as "file.py:12"; empty: it is no user's."""
    called = what.func if isinstance(what, functools.partial) else what
    kind = called if isinstance(called, type) else type(called)
    # Of a class: modules of torch take their time to say that they have no such attribute.
    is_function = isinstance(called, types.FunctionType | types.MethodType)
    for found in (called,) if is_function else (getattr(kind, name, None) for name in _CALLED):
        function = getattr(found, "__code__", None)
        if function is not None and is_users(function.co_filename):
            return _place(function.co_filename, function.co_firstlineno)
    return ""


@functools.lru_cache(maxsize=64)
def _place(filename: str, line: int) -> str:
    return f"{_shown(filename)}:{line}"


_CALLED = ("forward", "__getitem__", "__iter__", "__call__", "__init__")


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


@functools.lru_cache(maxsize=4096)
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
