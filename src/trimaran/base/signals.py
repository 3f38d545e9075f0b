"""Signals that ask a process to end: SIGTERM, SIGHUP, SIGUSR1 (Slurm's warning before a time limit), Ctrl-C.

    no training under way   the first one raises `Interrupted`: what has begun is undone
    training                the first one is noted, and the training ends after a step that all ranks have done
    both                    a second one leaves at once: what was registered by `leaving` is done, then the process ends

The exit code is 128 and the number of the signal, as that of a shell for a command that a signal has ended.

One cause may send two: a launcher passes on what its children have received too, and systemd sends SIGHUP right after
SIGTERM. So what comes within half a second of the first is not a second one.
"""

import contextlib
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from trimaran.base.outcome import note_exit_code

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)
)
"""Windows has the first two."""

SAME_CAUSE_S = 0.5
"""What comes within this time of the first is not a second one [s]."""

MOST_IMPORT_S = 5.0
"""The first one is not raised within an import that takes no longer than this [s]."""

_MOMENT_S = 0.05

Hear = Callable[[int], object]
"""Is told the number of a signal."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end, and nothing was under way that ends in another manner.

    Args:
        number: of the signal
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal_name(number))
        self.number = number


def signal_name(number: int) -> str:
    """The name of a signal.

    Example:
        >>> signal_name(15)
        'SIGTERM'
    """
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"


def exit_code(number: int) -> int:
    """The exit code of a process that a signal has ended.

    Example:
        >>> [exit_code(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT)]
        [143, 129, 138, 130]
    """
    return 128 + number


def raise_interrupted(number: int) -> None:
    """For `Catcher`: what to do with the first signal where nothing is to be saved.

    While a module is imported, the signal is sent again a moment later, for `MOST_IMPORT_S` at most: compiled parts of
    modules swallow what is raised in them, or abort the process.

    Raises:
        Interrupted: always but then
    """
    if _heard and time.monotonic() - _heard[0] < MOST_IMPORT_S:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                _send_later(number)
                return
            frame = frame.f_back
    raise Interrupted(number)


def say(text: str) -> None:
    """Write a line to standard error, also in the handler of a signal, and where nobody reads it any more."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


def say_ended(number: int, *notes: str) -> None:
    """Write to standard error that a signal has ended this command.

    Args:
        number: of the signal
        notes: further lines, such as what is left
    """
    by = "interrupted" if number == signal.SIGINT else f"ended by {signal_name(number)}"
    say("\n".join([f"trimaran: {by}", *notes]))


# ---------------------------------------------------------------------------------------------------------------------
# To leave at once


_leaving: list[Hear] = []


@contextlib.contextmanager
def leaving(callback: Hear) -> Iterator[None]:
    """For as long as the block runs, have something done where a second signal makes this process leave at once.

    Args:
        callback: is given the number of the signal; must not wait
    """
    _leaving.append(callback)
    try:
        yield
    finally:
        # In a process that was forked meanwhile it is not there.
        with contextlib.suppress(ValueError):
            _leaving.remove(callback)


def leave(number: int) -> NoReturn:
    """Do what was registered by `leaving`, the last one first, and end this process.

    Args:
        number: of the signal
    """
    say(f"trimaran: {signal_name(number)} again: it ends at once")
    for callback in reversed(_leaving[:]):
        with contextlib.suppress(BaseException):  # the next one is still to be done
            callback(number)
    note_exit_code(exit_code(number))
    os._exit(exit_code(number))


# ---------------------------------------------------------------------------------------------------------------------
# To catch signals


class Catcher:
    """Catches the signals while it is entered, in the main thread; does nothing in another one.

    A signal that is ignored, as SIGHUP under nohup, stays ignored. Where the user has a handler, it is called too. What
    was there before is put back at the end, and in every process that is forked meanwhile.

    Args:
        first: is told the number of the first signal; may raise
        threaded: signals are heard by a thread, so that also a process whose main thread waits inside a library
            leaves at once; `first` must not raise then
    """

    def __init__(self, first: Hear, *, threaded: bool = False) -> None:
        self._first = first
        self._threaded = threaded
        self._before: dict[int, Any] = {}
        self._wakes: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Catcher":
        if threading.current_thread() is not threading.main_thread():
            return self
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        # None: a handler that is not Python's, as one of faulthandler.
        self._before = {number: one for number, one in before.items() if one not in (signal.SIG_IGN, None)}
        if self._before and self._threaded:
            self._listen()
        if not _open:
            _notice_swallowed()
        _open.append(self)
        for number in self._before:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self not in _open:
            return
        self._restore()
        if self._wakes is not None:
            self._wakes.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)
        if not _open:
            _heard.clear()
            _sent_again.clear()

    def _restore(self) -> None:
        _open.remove(self)
        for number, handler in self._before.items():
            # Somebody may have put another one in its place.
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        if self._wakes is not None:
            signal.set_wakeup_fd(-1)

    def _listen(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        taken = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        if taken != -1:
            # An event loop of the user's is told of signals: its place is not for us.
            signal.set_wakeup_fd(taken)
            ours.close()
            theirs.close()
            return
        self._wakes = theirs
        self._thread = threading.Thread(target=self._read, args=(ours,), name="trimaran-signals", daemon=True)
        self._thread.start()

    def _read(self, wakes: socket.socket) -> None:
        with wakes:
            while numbers := wakes.recv(64):
                for number in numbers:
                    if number in self._before:
                        self._hear(number)

    def _handle(self, number: int, frame: Any) -> None:
        if _held_back:
            _held_back[-1].append(lambda: self._handle(number, frame))
            return
        if self._thread is None:
            self._hear(number)
        before = self._before[number]
        own = isinstance(getattr(before, "__self__", None), Catcher)
        if callable(before) and before is not signal.default_int_handler and not own:
            before(number, frame)

    def _hear(self, number: int) -> None:
        if signal_name(number) == "SIGHUP":
            _let_go_of_terminal()
        again = bool(_sent_again)
        _sent_again.clear()
        if not _heard:
            _heard.append(time.monotonic())
            self._first(number)
        elif again:
            self._first(number)
        elif time.monotonic() - _heard[0] >= SAME_CAUSE_S:
            leave(number)


_held_back: list[list[Callable[[], None]]] = []


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Signals that are caught in the main thread while the block runs are heard at its end.

    For a moment in which something begins to be and nobody knows of it yet, as a process that is started. Does nothing
    in another thread, whose block no signal breaks off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    later: list[Callable[[], None]] = []
    _held_back.append(later)
    try:
        yield
    finally:
        _held_back.remove(later)
        for hear in later:
            hear()


def was_heard() -> bool:
    """Whether a signal that is caught has come to this process, and somebody catches them still."""
    return bool(_heard)


_open: list[Catcher] = []
_heard: list[float] = []
"""When the first signal came, of this process."""
_sent_again: list[int] = []
"""The first signal, where it is sent once more and was not heard yet."""


def _forked() -> None:
    """A process that is forked has the handlers of its parent, and no thread that hears them."""
    for catcher in reversed(_open[:]):
        with contextlib.suppress(ValueError, OSError):
            catcher._restore()
    _heard.clear()
    _sent_again.clear()
    _leaving.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _notice_swallowed() -> None:
    """What is raised in a finalizer, or in what is called at a fork, ends nothing: Python tells of it and goes on.

    An `Interrupted` that came just then is sent again a moment later, until it comes where it ends something.
    """
    told = sys.unraisablehook
    if getattr(told, "__name__", "") == "_raise_again":
        return

    def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:
        raised = unraisable.exc_value
        if isinstance(raised, Interrupted) and _open:
            # Sent here, it would be raised in this function, and swallowed too.
            _send_later(raised.number)
        else:
            told(unraisable)

    sys.unraisablehook = _raise_again


def _send_later(number: int) -> None:
    """Send the first signal once more, as if it had not come."""
    later = threading.Timer(_MOMENT_S, _send, (number,))
    later.daemon = True
    later.start()


def _send(number: int) -> None:
    _sent_again.append(number)
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)
    else:
        signal.raise_signal(number)


def _let_go_of_terminal() -> None:
    """Where the terminal has gone, have what is still written go nowhere: it would be an error."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
