"""Pauses that end when they should.

A thread of Linux that sleeps wakes up late by its timer slack, 50 µs unless it says otherwise, and by what the
scheduler takes. The slack is set to its least; what is left of the lateness is seen in the record like any other time.
"""

import contextlib
import ctypes
import time

# From linux/prctl.h.
_SET_TIMER_SLACK = 29


def sharpen_timers() -> None:
    """Let pauses of this thread end as soon as the kernel can; does nothing where that is not Linux."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)


def pause_until(moment_ns: int) -> None:
    """Sleep until a moment; returns at once where it is past.

    Args:
        moment_ns: of `time.perf_counter_ns` [ns]
    """
    left_ns = moment_ns - time.perf_counter_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
