"""The transfers whose durations are measured, as one rank takes part in them.

Runs inside the ranks; imports torch.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle

import torch
import torch.distributed as dist

from trimaran.costs.tables import CurveKey
from trimaran.costs.transfers import QUEUED, SEND
from trimaran.program.types import Kind
from trimaran.runtime.flat import all_gather, reduce_scatter
from trimaran.runtime.letterbox import Letterbox, Sender
from trimaran.runtime.world import World

QUEUE = 32
"""Transfers that are started at once, where a curve is of queued ones."""

OF_16_BITS = {f"{Kind.ALL_REDUCE} bf16": torch.bfloat16, f"{Kind.ALL_REDUCE} fp16": torch.float16}
"""Types of what is added up, by the kinds of curves that are not of whole numbers."""

_SHARED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
_COLD_BYTES = 32 * 1024 * 1024
_MOST_PLACES = 20


def make_memory(world: World, largest: int) -> torch.Tensor:
    """Memory for transfers up to a size, more than most caches hold.

    Args:
        world: this rank
        largest: of the sizes [bytes]
    """
    return torch.zeros(max(largest, _COLD_BYTES) // 4, dtype=torch.float32, device=world.device)


def make_transfer(
    world: World,
    key: CurveKey,
    nbytes: int,
    group: dist.ProcessGroup,
    boxes: Sequence[Letterbox],
    memory: torch.Tensor,
) -> Callable[[], None]:
    """What runs a transfer to its end, each time on other memory.

    Args:
        world: this rank, a member of the group
        key: which transfer
        nbytes: size of it [bytes]
        group: of the ranks that take part
        boxes: this rank's end of the letterbox between ranks 0 and 1, where there is one
        memory: from `make_memory`
    """
    if key.kind == SEND and boxes:
        return partial(_pass, boxes[0])
    buffers = _buffers(nbytes, memory)
    if key.kind == SEND:
        return (lambda: _send(next(buffers))) if world.rank == 0 else (lambda: _receive(next(buffers)))
    if key.kind.endswith(QUEUED):
        return lambda: _queue(key.kind.removesuffix(QUEUED), buffers, group)
    if key.kind == Kind.BROADCAST:
        return lambda: _finish(dist.broadcast(next(buffers), src=0, group=group, async_op=True))
    if key.kind in _SHARED:
        return lambda: _share(key.kind, next(buffers), world, group)
    dtype = OF_16_BITS.get(key.kind, torch.float32)
    return lambda: _finish(dist.all_reduce(next(buffers).view(dtype), group=group, async_op=True))


def _buffers(nbytes: int, memory: torch.Tensor) -> Iterator[torch.Tensor]:
    """Buffers of a size, spread over the memory, as gradients and activations are."""
    count = max(1, nbytes // 4)
    places = min(len(memory) // count, _MOST_PLACES)
    step = len(memory) // places
    return cycle([memory[place * step : place * step + count] for place in range(places)])


def _share(kind: str, whole: torch.Tensor, world: World, group: dist.ProcessGroup) -> None:
    """Gather a tensor of which each rank has a part, or scatter the sum of such tensors; padded, as users of it do."""
    ranks = dist.get_world_size(group)
    rows = -(-len(whole) // ranks)
    padded = whole if len(whole) == rows * ranks else whole.new_zeros(rows * ranks)
    own = padded.narrow(0, world.rank * rows, rows)
    if kind == Kind.ALL_GATHER:
        _finish(all_gather(padded, own, group=group, async_op=True))
    else:
        _finish(reduce_scatter(torch.empty_like(own), padded, group=group, async_op=True))


def _queue(kind: str, buffers: Iterator[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Start several at once, each from or to the next rank, and wait for all."""
    roots = cycle(range(dist.get_world_size(group)))
    operation = dist.broadcast if kind == Kind.BROADCAST else dist.reduce
    works = [operation(next(buffers), next(roots), group=group, async_op=True) for _ in range(QUEUE)]
    for work in works:
        _finish(work)


def _pass(box: Letterbox) -> None:
    """The word that a message is there; the copies in and out are the work of the ranks' own threads (`handling`)."""
    byte = torch.zeros(1, dtype=torch.uint8)
    if isinstance(box, Sender):
        box.send(byte)
    else:
        box.receive(byte).wait()


def _send(tensor: torch.Tensor) -> None:
    _finish(dist.isend(tensor, 1))


def _receive(tensor: torch.Tensor) -> None:
    _finish(dist.irecv(tensor, 0))


def _finish(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
