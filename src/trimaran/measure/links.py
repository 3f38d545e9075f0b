"""What messages and collectives take between the ranks of this machine.

Each transfer is timed from the moment its last member is ready to the moment its last member has the result. On one
machine the monotonic clock is the same for all processes, so the times of the ranks are compared directly. A barrier
before each transfer keeps one from running into the next.

    rank 0   ──barrier──┤ start ══════ all-reduce ═════╡ end
    rank 1   ────barrier───┤ start ═══ all-reduce ══════╡ end
                           └────── the sample ──────────┘

Runs inside the ranks; imports torch.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle

import torch
import torch.distributed as dist

from trimaran.costs.tables import Curve, CurveKey
from trimaran.costs.transfers import HOST, QUEUED, SEND
from trimaran.measure.handling import SIZES as HANDLING_SIZES
from trimaran.measure.handling import measure_handling
from trimaran.measure.samples import Rounds, summarize
from trimaran.program.types import Kind
from trimaran.runtime.event_loops import calm_event_loops
from trimaran.runtime.flat import all_gather, reduce_scatter
from trimaran.runtime.letterbox import Letterbox, Sender
from trimaran.runtime.letterboxes import open_letterboxes
from trimaran.runtime.world import World

SIZES = (16, 1024, 16 * 1024, 128 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024)
"""Sizes at which curves are measured [bytes]."""

ROUNDS = 3
_BOX_S = 0.03
_MOST_REPEATS = 20
_WARM_UP = 2
_LARGE = 4 * 1024 * 1024
_LONG_S = 0.1
_QUEUE = 32
_LARGEST_QUEUED = 1024 * 1024
_COLD_BYTES = 32 * 1024 * 1024
_SHARED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
_OF_16_BITS = {f"{Kind.ALL_REDUCE} bf16": torch.bfloat16, f"{Kind.ALL_REDUCE} fp16": torch.float16}


def measure_curves(world: World, keys: Sequence[CurveKey], *, sizes: Sequence[int] = SIZES) -> dict[CurveKey, Curve]:
    """Time the transfers that are asked for.

    Args:
        world: this rank; all ranks call this with the same keys
        keys: which transfers, between the first so many ranks
        sizes: at which sizes, ascending [bytes]

    Returns:
        The curves, on every rank.
    """
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in sorted({key.ranks for key in keys})}
    calm_event_loops()
    boxes = _letterboxes(world, sizes)
    rounds: dict[tuple[CurveKey, int], Rounds] = {}
    for _ in range(ROUNDS):
        for key in keys:
            for nbytes in _sizes(key, sizes):
                samples = _measure_size(world, key, nbytes, groups[key.ranks], boxes)
                rounds.setdefault((key, nbytes), []).append(samples)
    for box in boxes:
        box.close()
    how = f"{world.backend}, {ROUNDS} rounds"
    return {
        key: tuple((nbytes, summarize(rounds[key, nbytes], how=how, waits=True)) for nbytes in _sizes(key, sizes))
        for key in keys
    }


def _sizes(key: CurveKey, sizes: Sequence[int]) -> Sequence[int]:
    if key.kind.endswith(QUEUED):
        return [size for size in sizes if size <= _LARGEST_QUEUED]
    if key.kind in _OF_16_BITS:
        # Beyond it goes on as that of whole numbers does.
        return [size for size in sizes if size <= _LARGE]
    return [size for size in sizes if size in HANDLING_SIZES] if key.kind.endswith(HOST) else sizes


def _letterboxes(world: World, sizes: Sequence[int]) -> list[Letterbox]:
    """Between ranks 0 and 1, as the runtime has them: one on each of them, or none."""
    if world.size < 2 or world.device != "cpu":
        return []
    return list(open_letterboxes({(0, 1): 2 * max(*sizes, *HANDLING_SIZES)}, world, dist.group.WORLD).values())


def _measure_size(
    world: World, key: CurveKey, nbytes: int, group: dist.ProcessGroup, boxes: Sequence[Letterbox]
) -> list[float]:
    """Durations of a few transfers of one size; the same list on every rank [s]."""
    times: list[tuple[float, float]] = []
    depth = _QUEUE if key.kind.endswith(QUEUED) else 1
    if key.kind.endswith(HOST):
        own = measure_handling(world, key, nbytes, group, boxes) if world.rank < key.ranks else []
        return _of_rank_0(own, world)
    if world.rank < key.ranks:
        transfer = _transfer(world, key, _buffers(nbytes, world.device), group)
        if key.kind == SEND and boxes:
            transfer = partial(_pass, boxes[0])
        times = [_time_once(transfer, world, group) for _ in range(_WARM_UP if nbytes <= _LARGE else 1)]
        repeats = agree_on_repeats(times[-1][1] - times[-1][0], group, device=world.device)
        times = [_time_once(transfer, world, group) for _ in range(repeats)]
    return [seconds / depth for seconds in _last_to_last(times, world)]


def agree_on_repeats(seconds: float, group: dist.ProcessGroup, *, device: str) -> int:
    """How often to repeat what takes so long; the same number on every member.

    Args:
        seconds: of one repetition, as this rank saw it [s]
        group: who must agree
        device: where the group's tensors live
    """
    slowest = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    least = 3 if float(slowest) < _LONG_S else 1
    return max(least, min(_MOST_REPEATS, int(_BOX_S / max(float(slowest), 1e-6))))


def _buffers(nbytes: int, device: str) -> Iterator[torch.Tensor]:
    """Buffers of a size, spread over more memory than most caches hold, as gradients and activations are."""
    count = max(1, nbytes // 4)
    memory = torch.zeros(max(count, _COLD_BYTES // 4), dtype=torch.float32, device=device)
    places = min(len(memory) // count, _MOST_REPEATS)
    step = len(memory) // places
    return cycle([memory[place * step : place * step + count] for place in range(places)])


def _transfer(
    world: World, key: CurveKey, buffers: Iterator[torch.Tensor], group: dist.ProcessGroup
) -> Callable[[], None]:
    if key.kind == SEND:
        return (lambda: _send(next(buffers))) if world.rank == 0 else (lambda: _receive(next(buffers)))
    if key.kind.endswith(QUEUED):
        return lambda: _queue(key.kind.removesuffix(QUEUED), buffers, world, group)
    if key.kind == Kind.BROADCAST:
        return lambda: _finish(dist.broadcast(next(buffers), src=0, group=group, async_op=True))
    if key.kind in _SHARED:
        return lambda: _share(key.kind, next(buffers), world, group)
    dtype = _OF_16_BITS.get(key.kind, torch.float32)
    return lambda: _finish(dist.all_reduce(next(buffers).view(dtype), group=group, async_op=True))


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


def _queue(kind: str, buffers: Iterator[torch.Tensor], world: World, group: dist.ProcessGroup) -> None:
    """Start several at once, each from or to the next rank, and wait for all."""
    roots = cycle(range(dist.get_world_size(group)))
    operation = dist.broadcast if kind == Kind.BROADCAST else dist.reduce
    works = [operation(next(buffers), next(roots), group=group, async_op=True) for _ in range(_QUEUE)]
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


def _time_once(transfer: Callable[[], None], world: World, group: dist.ProcessGroup) -> tuple[float, float]:
    dist.barrier(group)
    synchronize(world)
    start_s = time.perf_counter()
    transfer()
    synchronize(world)
    return start_s, time.perf_counter()


def synchronize(world: World) -> None:
    """Wait until the device of this rank has done what it was given; nothing to do on a CPU."""
    if world.device != "cpu":
        torch.cuda.synchronize()


def _of_rank_0(values: list[float], world: World) -> list[float]:
    shared = [values]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def _last_to_last(times: Iterable[tuple[float, float]], world: World) -> list[float]:
    gathered: list[list[tuple[float, float]]] = [[] for _ in range(world.size)]
    dist.all_gather_object(gathered, list(times))
    members = [entries for entries in gathered if entries]
    return [
        max(end_s for _, end_s in together) - max(start_s for start_s, _ in together)
        for together in zip(*members, strict=True)
    ]
