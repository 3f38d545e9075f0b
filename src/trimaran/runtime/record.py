"""What happened when, as spans that carry the ids of the program's instructions.

A rank writes its spans into a list, two readings of the clock and one append a span, and nothing is computed before
the end of a step. Streams of the record, of which the first three are those of a program:

    compute, host      from the call to its end
    communication      from when it was posted to when it had ended; where the end is not known or costs too much to
                       find out (sends and receives of gloo; its collectives in seven of eight steps), to the end of the
                       wait for it
    wait               while the rank packed and handed over a piece of communication, or waited for it, and so computed
                       nothing; it carries the id of that piece

The last steps are kept, so that a long run does not fill the memory.

Times are on the clock of rank 0. Ranks of one machine read the same monotonic clock, and need no correction. Others
compare clocks: one sends a ping, rank 0 answers with its time, and of many exchanges the fastest counts.

    rank 0    t0 ──▶           ──▶ t2        offset = t1 - (t0 + t2) / 2
    rank k          ──▶ t1 ──▶               it is off by at most (t2 - t0) / 2

Clocks also run at slightly different speeds, so they are compared before and after a run, and corrected in proportion
between.

Source:
    Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trimaran.base.timeline import Span, Timeline
from trimaran.launch.world import running_system
from trimaran.runtime.streams import Stamp, Streams

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
    dist.all_gather_object(machines, running_system() or f"unknown {time.time_ns()}", group=group)
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


STEPS_KEPT = 500
WATCH_EVERY = 8
_ALL_OF = 8
_THEN_EVERY = 16

_Row = tuple[str, str, Stamp, Stamp, int]


class RunRecorder:
    """The record of one rank.

    Args:
        rank: number of the rank
        streams: clock of its device
        group: all ranks, for host memory; None: this process is alone
        enabled: False: everything is ignored, and the timeline is empty

    Attributes:
        names: tokens of the program for those that run under others; where steps overlap, these are numbered
    """

    def __init__(self, rank: int, streams: Streams, group: dist.ProcessGroup | None, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.names: Mapping[str, str] = {}
        self._rank = rank
        self._streams = streams
        self._group = group
        self._number = 0
        self._collectives = 0
        self._rows: list[_Row] = []
        self._steps: deque[tuple[int, list[_Row]]] = deque(maxlen=STEPS_KEPT)
        self._before = compare_clocks(group)

    def watches(self, *, collective: bool) -> bool:
        """Whether to find out when a piece of communication ends.

        On a GPU, always. gloo calls Python from one of its threads, which then contends with the training for the
        interpreter's lock. So it is asked in some steps only, there for the first few collectives and then for one of
        many, and never for messages, whose end it does not tell.

        Args:
            collective: it is one; False: it is a message
        """
        if not self._streams.host_blocks:
            return self.enabled
        if not (self.enabled and collective and self._number % WATCH_EVERY == 0):
            return False
        self._collectives += 1
        return self._collectives <= _ALL_OF or self._collectives % _THEN_EVERY == 0

    def stamp(self) -> Stamp:
        """This moment; 0 where nothing is recorded."""
        return self._streams.stamp() if self.enabled else 0

    def add(self, token: str, stream: str, start: Stamp, end: Stamp, nbytes: int = 0) -> None:
        """Write one span down.

        Args:
            token: of the instruction, within its rank
            stream: one of those above
            start: moment of its start
            end: moment of its end
            nbytes: moved [bytes]
        """
        if self.enabled:
            self._rows.append((self.names.get(token, token), stream, start, end, nbytes))

    def end_step(self, number: int) -> None:
        """Close a step.

        On a GPU its moments are read one step later, when the device has passed them, so that nothing waits for that.

        Args:
            number: of the step
        """
        self._number = number + 1
        self._collectives = 0
        if not self.enabled:
            return
        if self._steps and not self._streams.host_blocks:
            self._steps[-1] = self._read(*self._steps[-1])
        self._steps.append((number, self._rows))
        self._rows = []

    def discard(self) -> None:
        """Forget what was written since the last step ended."""
        self._rows.clear()

    def timeline(self) -> Timeline:
        """The spans of all ranks; every rank takes part.

        Returns:
            On rank 0 the timeline, on its clock, from the start of the first step that is kept; on the others an
            empty one.
        """
        self._streams.synchronize()
        if self._steps and not self._streams.host_blocks:
            self._steps[-1] = self._read(*self._steps[-1])
        mine = self._own_rows()
        if self._group is None:
            return _assemble([mine])
        gathered: list[Any] | None = [None] * dist.get_world_size(self._group) if self._rank == 0 else None
        dist.gather_object(mine, gathered, group=self._group, group_dst=0)
        return _assemble(gathered) if gathered is not None else Timeline([])

    def _read(self, number: int, rows: list[_Row]) -> tuple[int, list[_Row]]:
        ns = self._streams.nanoseconds
        return number, [(token, stream, ns(start), ns(end), nbytes) for token, stream, start, end, nbytes in rows]

    def _own_rows(self) -> tuple[int, list[tuple[int, _Row]]]:
        """This rank, and its steps and rows on the clock of rank 0."""
        rows = [(number, row) for number, rows in self._steps for row in rows]
        after = compare_clocks(self._group)
        starts, ends = (
            to_clock_of_rank_0([int(row[column]) for _, row in rows], self._before, after) for column in (2, 3)
        )
        return self._rank, [
            (number, (token, stream, start, end, nbytes))
            for (number, (token, stream, _, _, nbytes)), start, end in zip(rows, starts, ends, strict=True)
        ]


def _assemble(ranks: list[tuple[int, list[tuple[int, _Row]]]]) -> Timeline:
    origin = min((start for _, rows in ranks for _, (_, _, start, _, _) in rows), default=0)
    spans = [
        Span(
            rank=rank,
            stream=stream,
            start_s=(start - origin) / 1e9,
            end_s=(end - origin) / 1e9,
            instruction=f"r{rank}/{token}",
            nbytes=nbytes,
            step=step,
        )
        for rank, rows in ranks
        for step, (token, stream, start, end, nbytes) in rows
    ]
    return Timeline(spans)
