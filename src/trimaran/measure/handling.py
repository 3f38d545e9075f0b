"""What a rank's own thread does for a transfer: packing and handing over, and taking up what has come.

On a CPU that thread computes nothing meanwhile, so the time is the rank's, however well the bytes themselves are
hidden. Measured with the runtime's own records of pending communication, by the clock of the thread, while the
transfer runs beside compute as it does in a pipeline:

    rank 0   ──barrier──┤ compute ┤ send ┤ compute ────────────┤ wait ┤      send + wait is the sample
    rank 1   ──barrier──┤ receive ┤ compute ───────────────────┤ wait ┤      receive + wait is the sample

Runs inside the ranks; imports torch.
"""

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from trimaran.costs.tables import CurveKey
from trimaran.costs.transfers import HOST_RECEIVE, HOST_SEND
from trimaran.graph.types import Affine, TensorSpec
from trimaran.runtime.letterbox import Letterbox, Receiver, Sender
from trimaran.runtime.messages import MessageLayout
from trimaran.runtime.pending import InFlight, Pending
from trimaran.runtime.record import Recorder
from trimaran.runtime.streams import open_streams
from trimaran.runtime.world import World

SIZES = (16, 128 * 1024, 1024 * 1024, 4 * 1024 * 1024)
"""Sizes at which the time of the thread is measured [bytes]."""

_WARM_UP = 1
_WIDTH = 192
_BEFORE = 4
_BESIDE = 16


def measure_handling(
    world: World,
    key: CurveKey,
    nbytes: int,
    group: dist.ProcessGroup,
    boxes: Sequence[Letterbox] = (),
    *,
    repeats: int,
) -> list[float]:
    """Time that the rank's thread spends on transfers of one size.

    Args:
        world: this rank; all members of the group call this
        key: which transfer, and for a message which end
        nbytes: size of the transfer [bytes]
        group: of two ranks
        boxes: this rank's end of the letterbox between them, where there is one
        repeats: transfers that count; one before them does not

    Returns:
        One figure a transfer, the same list on every rank [s].
    """
    exchange = _Exchange(world, nbytes, group, boxes)
    samples: list[float] = []
    for number in range(_WARM_UP + repeats):
        dist.barrier(group)
        seconds = exchange.reduce() if key.kind not in (HOST_SEND, HOST_RECEIVE) else exchange.message()
        if number >= _WARM_UP:
            samples.append(seconds)
    shared = torch.tensor(samples, dtype=torch.float64)
    dist.broadcast(shared, src=1 if key.kind == HOST_RECEIVE else 0, group=group)
    return [float(value) for value in shared]


class _Exchange:
    """One transfer after another, as the interpreter does them."""

    def __init__(self, world: World, nbytes: int, group: dist.ProcessGroup, boxes: Sequence[Letterbox] = ()) -> None:
        self._box = boxes[0] if boxes else None
        count = max(1, nbytes // 4)
        spec = TensorSpec(name="x", shape=(count,), dtype="float32", nbytes=Affine(fixed=4 * count))
        streams = open_streams(world.device)
        self._rank, self._device, self._group = world.rank, world.device, group
        self._layout = MessageLayout([spec], 1)
        self._tensor = torch.zeros(count, device=world.device)
        self._piece = torch.ones(_WIDTH, _WIDTH, device=world.device)
        self._recorder = Recorder(world.rank, streams, None)
        self._in_flight = InFlight(world.rank, streams, self._recorder)

    def message(self) -> float:
        """One message from rank 0 to rank 1; seconds of this rank's thread."""
        return self._timed(self._send, before=_BEFORE) if self._rank == 0 else self._timed(self._receive)

    def reduce(self) -> float:
        """One all-reduce; seconds of this rank's thread."""
        return self._timed(lambda: self._add(dist.all_reduce(self._tensor, group=self._group, async_op=True)))

    def _timed(self, post: Callable[[], object], *, before: int = 0) -> float:
        self._compute(before)
        started = time.thread_time_ns()
        post()
        posted = time.thread_time_ns() - started
        self._compute(_BESIDE)
        started = time.thread_time_ns()
        self._in_flight.wait("x")
        self._recorder.discard()
        return (posted + time.thread_time_ns() - started) * 1e-9

    def _send(self) -> None:
        if isinstance(self._box, Sender):
            room = self._box.room(self._layout.nbytes)
            self._add(self._box.send(self._layout.pack({"x": self._tensor}, self._device, into=room)))
            return
        buffer = self._layout.pack({"x": self._tensor}, self._device)
        self._add(dist.isend(buffer, 1, group=self._group), buffer)

    def _receive(self) -> None:
        buffer = torch.empty(self._layout.nbytes, dtype=torch.uint8, device=self._device)
        if isinstance(self._box, Receiver):
            pending = self._add(self._box.receive(buffer), buffer)
        else:
            pending = self._add(dist.irecv(buffer, 0, group=self._group), buffer)
        pending.finish = lambda: self._store(buffer)

    def _store(self, buffer: torch.Tensor) -> None:
        for tensor in self._layout.unpack(buffer).values():
            tensor.requires_grad_(True)

    def _add(self, work: object, *buffers: torch.Tensor) -> Pending:
        start = self._recorder.stamp()
        pending = Pending(token="x", nbytes=self._layout.nbytes, works=[work], buffers=list(buffers), start=start)
        self._in_flight.add(pending, "measured", collective=False, stood_still=True)
        return pending

    def _compute(self, pieces: int) -> None:
        for _ in range(pieces):
            torch.mm(self._piece, self._piece)
