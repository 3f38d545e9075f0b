"""How a command ends: with the exit code that it has said, and one that ends without a word has failed.

    supervisor                           command, forked before torch or code of the user is imported
    ──────────                           ──────
    passes signals on, and waits         writes on a page that both share:
    reads the page                ◀──    what it asks of the user's code; at its end, its exit code
    ends with that code, or says
    what was asked, and ends with 2

`os._exit` in a job, or a crash of an extension, ends a process before anything in it can tell of it.
"""

import mmap
import os
import signal
from collections.abc import Callable, Iterable
from typing import NoReturn

from trimaran.base.errors import InputError
from trimaran.base.system import at_parents_death

_ROOM = 400
_page: list[mmap.mmap] = []


def note_asked(what: str) -> None:
    """Write down what is asked of the user's code.

    Args:
        what: for people; empty: nothing
    """
    for page in _page:
        text = what.encode(errors="replace")[:_ROOM]
        page[2 : 4 + _ROOM] = len(text).to_bytes(2) + text.ljust(_ROOM)


def note_exit_code(code: int) -> None:
    """Write down the exit code of this command, which has its result or has said why not.

    Args:
        code: of which the system keeps one byte
    """
    for page in _page:
        page[:2] = bytes((1, code & 0xFF))


def supervise(numbers: Iterable[int], begin: Callable[[], object]) -> None:
    """Fork, and return in the new process alone: the other one waits for it, and ends as it does.

    Args:
        numbers: of the signals that are passed on
        begin: called first in the new process, before it hears a signal
    """
    passed = [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    page = mmap.mmap(-1, 4 + _ROOM)
    above = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    command = os.fork()
    if command:
        _wait(command, page, passed, before)
    _page[:] = [page]
    _end_with(above)
    begin()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with(above: int) -> None:
    """Have the system kill this process when the supervisor is killed: nobody else would end it."""
    at_parents_death("SIGKILL")()
    if os.getppid() != above:
        os._exit(1)


def _wait(command: int, page: mmap.mmap, passed: Iterable[int], before: Iterable[int]) -> NoReturn:
    gone: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if not gone:
            os.kill(command, number)

    for number in passed:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # It is not reaped before `gone` is set: its number cannot be another's.
    os.waitid(os.P_PID, command, os.WEXITED | os.WNOWAIT)
    gone.append(command)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    if page[0]:
        os._exit(page[1])
    length = int.from_bytes(page[2:4])
    asked = page[4 : 4 + length].decode(errors="replace")
    if code < 0:
        text = f"the command was killed by {signal.Signals(-code).name}{f', in {asked}' if asked else ''}"
        code = 128 - code
    else:
        text = f"{asked or 'code that it called'} ended the process with exit code {code}, as os._exit does: no result"
        code = InputError.exit_code
    try:
        os.write(2, f"trimaran: {text}\n".encode(errors="replace"))
    finally:
        os._exit(code)
