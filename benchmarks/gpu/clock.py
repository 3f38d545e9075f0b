"""A benchmark that stops by itself: nothing is started that would not end in time, and the rest is given up."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

BUDGET_S = 420.0
"""After so long nothing new is started [s]."""

GRACE_S = 45.0
"""After so much more, what is under way is given up [s]."""


class OutOfTimeError(BaseException):
    """The time is over in the middle of something. No `Exception`, so that nobody takes it for a failure."""


class Clock:
    """How much time is left.

    Args:
        budget_s: in all [s]
    """

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self._start_s = time.monotonic()
        self._budget_s = budget_s
        self._longest_s: dict[str, float] = {}

    @property
    def elapsed_s(self) -> float:
        """Since the start [s]."""
        return time.monotonic() - self._start_s

    def allows(self, kind: str) -> bool:
        """Whether there is time for one more of a kind, if it takes as long as the longest so far.

        Args:
            kind: a name of what was timed
        """
        return self.elapsed_s + self._longest_s.get(kind, 0.0) <= self._budget_s

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Note how long one of a kind takes."""
        start_s = self.elapsed_s
        try:
            yield
        finally:
            self._longest_s[kind] = max(self._longest_s.get(kind, 0.0), self.elapsed_s - start_s)

    @contextmanager
    def gives_up(self) -> Iterator[None]:
        """Raise `OutOfTimeError` in what is under way when budget and grace are over."""

        def give_up(number: int, frame: object) -> None:
            raise OutOfTimeError

        before = signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, self._budget_s + GRACE_S - self.elapsed_s))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
