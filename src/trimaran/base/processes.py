"""Processes that this one starts and waits for, also where a signal breaks off the wait."""

import subprocess
import time

from trimaran.base.signals import held_back

_LONGEST_PAUSE_S = 0.05


class Process(subprocess.Popen[bytes]):
    """`subprocess.Popen`, whose `poll` and `wait` may be broken off by a handler that raises.

    Popen takes a lock for each look at the process. What a handler raises between that and the `try` after it leaves
    the lock taken, and whoever waits for the process next waits forever. So a look is not broken off here, and a wait
    is many looks.
    """

    def poll(self) -> int | None:
        """The exit code, negative for the number of a signal; None: it runs."""
        with held_back():
            return super().poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Args:
            timeout: most time [s]; None: no limit

        Returns:
            The exit code, negative for the number of a signal.

        Raises:
            subprocess.TimeoutExpired: it runs still
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        pause_s = 0.0005
        while (status := self.poll()) is None:
            left_s = pause_s if until_s is None else until_s - time.monotonic()
            if timeout is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return status
