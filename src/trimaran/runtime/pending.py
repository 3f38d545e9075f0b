"""Communication that has been started and not yet been waited for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trimaran.runtime.channels import wait_for
from trimaran.runtime.record import Recorder
from trimaran.runtime.streams import Stamp, Streams
from trimaran.timeline import COMMUNICATION, WAIT


def _nothing() -> None:
    pass


@dataclass(slots=True, kw_only=True)
class Pending:
    """One instruction under way.

    Attributes:
        token: of the instruction
        nbytes: moved since `start` [bytes]
        works: what torch.distributed returned
        buffers: kept alive until they have been sent or filled
        start: when it was posted
        finish: to do when it has ended: unpack, store; it may start more of the same instruction
        end: when it ended, where somebody can tell
    """

    token: str
    nbytes: int
    works: Sequence[Any]
    buffers: Sequence[torch.Tensor]
    start: Stamp
    finish: Callable[[], None] = _nothing
    end: Stamp = field(default=None)


def _together(one: Pending, other: Pending) -> Pending:
    """Two pieces of one instruction, such as two buckets where the program has one."""

    def finish() -> None:
        one.finish()
        other.finish()

    return Pending(
        token=one.token,
        nbytes=one.nbytes + other.nbytes,
        works=[*one.works, *other.works],
        buffers=[*one.buffers, *other.buffers],
        start=one.start,
        finish=finish,
    )


class InFlight:
    """All communication of a rank that is under way, by token.

    Args:
        rank: number of the rank
        streams: its device's
        recorder: gets a span for each that ends, and for each wait
    """

    def __init__(self, rank: int, streams: Streams, recorder: Recorder) -> None:
        self._rank = rank
        self._streams = streams
        self._recorder = recorder
        self._pending: dict[str, Pending] = {}

    def add(self, pending: Pending, channel: str, *, collective: bool, stood_still: bool) -> None:
        """Keep what was just started. What its instruction has under way already is then waited for together with it.

        Args:
            pending: what was started
            channel: communication that runs in order has one
            collective: it is one; False: it is a message
            stood_still: the rank packed and handed over data from its start to now, and computed nothing
        """
        before = self._pending.get(pending.token)
        self._pending[pending.token] = pending if before is None else _together(before, pending)
        if stood_still:
            self._recorder.add(pending.token, WAIT, pending.start, self._recorder.stamp())
        if self._recorder.watches(collective=collective):

            def done(stamp: Stamp, kept: Pending = self._pending[pending.token]) -> None:
                kept.end = stamp

            for work in pending.works:
                self._streams.watch(work, channel, done)

    def wait(self, token: str) -> None:
        """Wait for one to its end; nothing happens where it is not under way.

        Args:
            token: of the instruction
        """
        while token in self._pending:
            self.advance(token)

    def advance(self, token: str) -> None:
        """Wait for what one has started last, which may then start more.

        Args:
            token: of the instruction
        """
        pending = self._pending.pop(token, None)
        if pending is None:
            return
        before = self._recorder.stamp()
        for work in pending.works:
            wait_for(work, self._rank, token)
        after = self._recorder.stamp()
        pending.finish()
        if token not in self._pending:
            end = after if pending.end is None else pending.end
            self._recorder.add(token, COMMUNICATION, pending.start, end, pending.nbytes)
        self._recorder.add(token, WAIT, before, after)

    def wait_for_all(self, chosen: Callable[[str], bool] = lambda token: True) -> None:
        """Wait for all, in the order in which they were started.

        Args:
            chosen: leaves out those for whose tokens it is False
        """
        for token in [token for token in self._pending if chosen(token)]:
            self.wait(token)

    def forget(self) -> None:
        """Drop all, after a failure."""
        self._pending.clear()
