"""How a command ends: with the exit code that it has said, and one that ends without a word has failed.

    supervisor                           command, forked before torch or code of the user is imported
    ──────────                           ──────
    passes signals on, and waits         writes on a page that both share:
    reads the page                ◀──    what it asks of the user's code; at its end, its exit code
    ends with that code, or says
    what was asked, and ends with 2
    what was asked takes too long ──▶    writes down where it is, and is ended

`os._exit` in a job, or a crash of an extension, ends a process before anything in it can tell of it, and a data set
that waits for ever never comes back to whoever asked.
"""

import faulthandler
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from trimaran.base.errors import InputError
from trimaran.base.system import at_parents_death

LONGEST_S = 1800.0
"""That the user's code may take for one thing that it is asked, by default [s]; imports and downloads take minutes."""

_HEAD = struct.Struct("BBHId")
"""Whether there is an exit code; it; bytes of the text; number of what is asked, 0: nothing; how long it may take."""

_ROOM = 400

PAGE_BYTES = _HEAD.size + _ROOM
"""Of a page on which a process notes what it asks."""

_page: list[mmap.mmap | memoryview] = []
_always = [""]
_asked = [0]


def note_on(*page: mmap.mmap | memoryview) -> None:
    """Have what is asked noted on a page that another process reads; none: nowhere."""
    _page[:] = page


def asked_on(page: bytes) -> str:
    """What stands on a page as asked; empty: nothing is asked."""
    return page[_HEAD.size :][: _HEAD.unpack_from(page)[2]].decode(errors="replace")


def note_asked(what: str) -> None:
    """Write down what is asked of the user's code.

    Args:
        what: for people; empty: nothing that it knows of
    """
    for page in _page:
        text = (what or _always[0]).encode(errors="replace")[:_ROOM]
        _asked[0] = _asked[0] % 0xFFFFFFFF + 1
        page[2:8] = _HEAD.pack(0, 0, len(text), _asked[0] if what else 0, 0.0)[2:8]
        page[_HEAD.size : PAGE_BYTES] = text.ljust(_ROOM)


def note_always(what: str) -> None:
    """Write down whose code may be asked from now on, where nothing better is known.

    Args:
        what: for people
    """
    _always[0] = what
    note_asked("")


def asked_always() -> str:
    """Whose code may be asked, where nothing better is known; empty: it is not known."""
    return _always[0]


def note_limit(seconds: float) -> None:
    """Write down how long the user's code may take for one thing that it is asked [s]."""
    for page in _page:
        page[8 : _HEAD.size] = struct.pack("d", seconds)


def note_exit_code(code: int) -> None:
    """Write down the exit code of this command, which has its result or has said why not.

    Args:
        code: of which the system keeps one byte
    """
    for page in _page:
        page[:2] = bytes((1, code & 0xFF))


def supervise(numbers: Iterable[int], begin: Callable[[], object], shown: Callable[[bytes], Sequence[str]]) -> None:
    """Fork, and return in the new process alone: the other one waits for it, and ends as it does.

    Args:
        numbers: of the signals that are passed on
        begin: called first in the new process, before it hears a signal
        shown: calls that `faulthandler` has written down, as lines for people
    """
    passed = [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    page = mmap.mmap(-1, PAGE_BYTES)
    page[: _HEAD.size] = _HEAD.pack(0, 0, 0, 0, LONGEST_S)
    calls = os.memfd_create("trimaran-calls") if _WRITE_CALLS > 0 and hasattr(os, "memfd_create") else None
    above = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    command = os.fork()
    if command:
        _wait(command, page, calls, shown, passed, before)
    note_on(page)
    if calls is not None:
        faulthandler.register(_WRITE_CALLS, file=calls, all_threads=False)
    _end_with(above)
    begin()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with(above: int) -> None:
    """Have the system kill this process when the supervisor is killed: nobody else would end it."""
    at_parents_death("SIGKILL")()
    if os.getppid() != above:
        os._exit(1)


_WRITE_CALLS = getattr(signal, "SIGRTMAX", 0) - 3
"""Another one than that of `launch.activity`."""

_LOOK_S = 1.0
_ANSWER_S = 0.3
_LEAVE_S = 5.0


def _wait(
    command: int,
    page: mmap.mmap,
    calls: int | None,
    shown: Callable[[bytes], Sequence[str]],
    passed: Iterable[int],
    before: Iterable[int],
) -> NoReturn:
    gone: list[int] = []
    seen, looks, hangs = page[:], 0, ""

    def pass_on(number: int, _: object) -> None:
        if not gone:
            os.kill(command, number)

    def look(*_: object) -> None:
        # Looks are counted: what is stopped, or sleeps with its machine, takes no time.
        nonlocal seen, looks, hangs
        asked, limit_s = _HEAD.unpack_from(page)[3:]
        seen, looks = page[:], looks + 1 if hangs or (asked and page[:] == seen) else 0
        if not gone and looks * _LOOK_S >= limit_s:
            hangs = hangs or _hanging(asked_on(seen), limit_s, _calls(command, calls, shown))
            os.kill(command, signal.SIGTERM if looks * _LOOK_S < limit_s + _LEAVE_S else signal.SIGKILL)

    for number in passed:
        signal.signal(number, pass_on)
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # It is not reaped before `gone` is set: its number cannot be another's.
    os.waitid(os.P_PID, command, os.WEXITED | os.WNOWAIT)
    gone.append(command)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    if page[0] and not hangs:
        os._exit(page[1])
    asked = asked_on(page[:])
    if code < 0 and not hangs:
        text = f"the command was killed by {signal.Signals(-code).name}{f', in {asked}' if asked else ''}"
        code = 128 - code
    else:
        ended = f"{asked or 'code that it called'} ended the process with exit code {code}, as os._exit does: no result"
        text, code = hangs or ended, InputError.exit_code
    try:
        os.write(2, f"trimaran: {text}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def _calls(command: int, calls: int | None, shown: Callable[[bytes], Sequence[str]]) -> Sequence[str]:
    """Where a process is, which is asked to write it down."""
    if calls is None:
        return ()
    os.kill(command, _WRITE_CALLS)
    time.sleep(_ANSWER_S)
    return shown(os.pread(calls, 2**16, 0))


def _hanging(asked: str, limit_s: float, lines: Sequence[str]) -> str:
    from trimaran.base.units import format_seconds

    todo = "If it takes that long, do it once in another script, and let the job read what that has kept"
    return "\n".join([f"{asked} has taken more than {format_seconds(limit_s)}, and was ended:", *lines, todo])
