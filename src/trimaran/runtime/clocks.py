"""The clocks of several machines, on that of rank 0.

Ranks of one machine read the same monotonic clock, and need no correction. Others are asked: rank 0 sends a ping, the
other answers with its time, and of many exchanges the fastest is believed.

    rank 0    t0 ──▶           ──▶ t2        offset = t1 - (t0 + t2) / 2
    rank k          ──▶ t1 ──▶               it is off by at most (t2 - t0) / 2

Clocks also run at slightly different speeds, so they are compared before and after a run, and corrected in proportion
between.

Source:
    Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

_EXCHANGES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """How far a rank's clock is ahead of rank 0's.

    Attributes:
        at_ns: when it was measured, on the rank's own clock [ns]
        offset_ns: own clock minus rank 0's [ns]
        uncertainty_ns: largest error of the offset [ns]
    """

    at_ns: int
    offset_ns: int
    uncertainty_ns: int


def compare_clocks(group: dist.ProcessGroup | None) -> Offset:
    """This rank's clock against rank 0's; every rank of the group takes part.

    Args:
        group: all ranks, with a back end for host memory; None: this process is alone
    """
    if group is None:
        return Offset(at_ns=time.perf_counter_ns(), offset_ns=0, uncertainty_ns=0)
    machines: list[object] = [None] * dist.get_world_size(group)
    dist.all_gather_object(machines, _machine(), group=group)
    rank = dist.get_rank(group)
    found = Offset(at_ns=time.perf_counter_ns(), offset_ns=0, uncertainty_ns=0)
    for other in range(1, len(machines)):
        if machines[other] != machines[0] and rank in (0, other):
            found = exchange_pings(group, other)
    return found


def exchange_pings(group: dist.ProcessGroup, other: int) -> Offset:
    """Compare the clocks of rank 0 and one other; called on both.

    Args:
        group: process group that has both
        other: rank of the other

    Returns:
        On the other rank its offset; on rank 0 none.
    """
    rank = dist.get_rank(group)
    theirs = torch.zeros(2, dtype=torch.int64)
    best: Offset | None = None
    for _ in range(_EXCHANGES):
        if rank == 0:
            dist.recv(theirs, group_src=other, group=group)
            dist.send(torch.tensor([time.perf_counter_ns(), 0]), group_dst=other, group=group)
            continue
        start = time.perf_counter_ns()
        dist.send(theirs, group_dst=0, group=group)
        dist.recv(theirs, group_src=0, group=group)
        end = time.perf_counter_ns()
        offset = (start + end) // 2 - int(theirs[0])
        if best is None or end - start < 2 * best.uncertainty_ns:
            best = Offset(at_ns=end, offset_ns=offset, uncertainty_ns=(end - start + 1) // 2)
    return best or Offset(at_ns=time.perf_counter_ns(), offset_ns=0, uncertainty_ns=0)


def to_clock_of_rank_0(times_ns: Sequence[int], before: Offset, after: Offset) -> list[int]:
    """Times of a rank on the clock of rank 0.

    Args:
        times_ns: on the rank's own clock [ns]
        before: offset before the run
        after: offset after it

    Returns:
        The times, corrected by an offset that goes from one to the other in proportion [ns].

    Example:
        >>> before = Offset(at_ns=0, offset_ns=100, uncertainty_ns=0)
        >>> after = Offset(at_ns=1000, offset_ns=200, uncertainty_ns=0)
        >>> to_clock_of_rank_0([500], before, after)
        [350]
    """
    length = after.at_ns - before.at_ns
    drift = (after.offset_ns - before.offset_ns) / length if length > 0 else 0.0
    return [time_ns - before.offset_ns - round(drift * (time_ns - before.at_ns)) for time_ns in times_ns]


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else f"unknown {time.time_ns()}"
