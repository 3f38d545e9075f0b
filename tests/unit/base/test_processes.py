"""Processes that are waited for while signals come."""

import contextlib
import signal
import subprocess
import sys

import pytest

from trimaran.base.processes import Process
from trimaran.base.signals import Catcher, Interrupted, raise_interrupted


def test_a_look_that_a_signal_breaks_off_leaves_the_next_wait_as_it_was() -> None:
    """Popen's own leaves its lock taken in about every fifth of these."""
    with Process([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGUSR1))
        try:
            for trial in range(200):
                with contextlib.suppress(Interrupted), Catcher(raise_interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 + 1e-6 * trial)
                    while True:
                        process.poll()
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.0)
                assert not process._waitpid_lock.locked()  # type: ignore[attr-defined]
        finally:
            signal.signal(signal.SIGALRM, before)
            process.kill()
        assert process.wait() == -signal.SIGKILL


def test_a_wait_ends_with_the_process_and_says_how() -> None:
    with Process([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        assert process.wait() == process.wait(0.0) == process.poll() == 7
