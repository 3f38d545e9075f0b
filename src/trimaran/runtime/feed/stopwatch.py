"""What a thread did with its time: work, or standing still.

Standing still is what is left of the time on the clock without the thread's work and without its waits for a core:
sleep, storage, network, the interpreter's lock. A wait for a core counts as work, because it is work that makes it:
that of others who share the cores.

Source:
    `/proc/thread-self/schedstat`: time on a core, time ready to run and without one, times run (Linux,
    Documentation/scheduler/sched-stats.rst). Its first figure is only renewed now and then, so that the clock of the
    thread's work (`CLOCK_THREAD_CPUTIME_ID`) is asked in its place.
"""

import os
import threading
import time
from typing import NamedTuple

_SCHEDSTAT = "/proc/thread-self/schedstat"


class Moment(NamedTuple):
    """A moment of one thread.

    Attributes:
        clock_ns: on the host's clock [ns]
        busy_ns: how long the thread has worked or waited for a core so far [ns]
    """

    clock_ns: int
    busy_ns: int


def now() -> Moment:
    """This moment of this thread."""
    return Moment(time.perf_counter_ns(), time.thread_time_ns() + _delay_ns())


def since(start: Moment) -> tuple[float, float]:
    """How a thread has spent its time since a moment.

    Args:
        start: from `now`, in the same thread

    Returns:
        Standing still, and at work [s]; they add up to the time on the clock.
    """
    end = now()
    clock_ns = end.clock_ns - start.clock_ns
    busy_ns = min(clock_ns, end.busy_ns - start.busy_ns)
    return (clock_ns - busy_ns) * 1e-9, busy_ns * 1e-9


class _Schedstat:
    """The open file of one thread; a forked process has other threads, so that it opens its own."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        try:
            self.descriptor = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.descriptor = -1

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


_files = threading.local()


def _delay_ns() -> int:
    """How long this thread has waited for a core so far [ns]; 0 where the system does not say."""
    thread = threading.get_native_id()
    file: _Schedstat | None = getattr(_files, "schedstat", None)
    if file is None or file.thread != thread:
        file = _files.schedstat = _Schedstat(thread)
    if file.descriptor < 0:
        return 0
    try:
        return int(os.pread(file.descriptor, 64, 0).split()[1])
    except (OSError, IndexError, ValueError):
        return 0
