"""The clock by which compute is measured.

On a CPU it counts only while the rank's thread computes, so that other programs on the machine do not pass for costs of
the job: what is predicted is a machine that is otherwise idle. Where there are more ranks than cores, waiting for a
core is part of the cost, and the clock is that on the wall. On a GPU it is the device's.

Runs inside the ranks; imports torch.
"""

import time
from collections.abc import Callable
from typing import Any

from trimaran.cluster.detect import detect_processor
from trimaran.runtime.streams import CudaStreams, HostStreams, Stamp, Streams
from trimaran.runtime.world import World


class ThreadStreams:
    """A CPU whose clock stands still while another program has its core."""

    host_blocks = True

    def stamp(self) -> int:
        """How long this thread has computed [ns]."""
        return time.thread_time_ns()

    def watch(self, work: Any, channel: str, done: Callable[[Stamp], None]) -> None:
        """Nobody can know when communication ends on a clock that stands still meanwhile."""

    def nanoseconds(self, stamp: Stamp) -> int:
        """The stamp itself [ns]."""
        return int(stamp)

    def synchronize(self) -> None:
        """Nothing to wait for."""


def open_clock(world: World) -> Streams:
    """The clock by which this rank's compute is measured.

    Args:
        world: says which device it is, and how many ranks share the machine
    """
    if world.device != "cpu":
        return CudaStreams(world.device)
    return ThreadStreams() if world.local_size <= detect_processor().cores else HostStreams()
