"""How much compute and communication slow each other down on this machine.

Each rank computes in pieces of about a millisecond, first alone, then while one transfer after another is in flight, as
in a backward that overlaps with its all-reduces:

    alone      piece piece piece piece ...                    seconds a piece
    alone      ═══ transfer ═══  ═══ transfer ═══ ...         seconds a transfer
    together   ═══════ transfer ═══════  ═══════ transfer ═══════
               piece  piece  piece  piece  piece  piece  ...

The factors are the ratios of the times a piece and a transfer take together and alone. The number of transfers of a
round is fixed, so that all ranks post the same ones; a rank computes for as long as its transfers are under way. A
thread waits for them, because gloo does not say that a message has ended until somebody waits for it. Runs inside the
ranks; imports torch.
"""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle

import torch
import torch.distributed as dist

from trimaran.launch.world import World
from trimaran.measure.calibration.links import QUEUE, queue_reduces, synchronize
from trimaran.measure.findings import summarize
from trimaran.measure.rounds import largest
from trimaran.pricing.transfers import QUEUED, SEND
from trimaran.pricing.types import Interference
from trimaran.program.types import Kind

NBYTES = 1024 * 1024
"""Size of the transfers that run while the device computes [bytes]."""

BOX_S = 1.5
"""Time for all rounds of a kind together [s]."""

REDUCES = f"{Kind.REDUCE}{QUEUED}"
"""Kind of transfer of gradients on their way to owners."""

_SMALL_BYTES = 16 * 1024
_LEAST_ROUNDS, _MOST_ROUNDS = 4, 20
_TRANSFERS = 4
_PIECES = 200
_WIDTH = 192

Work = Callable[[], None]


def measure_interference(world: World, kind: str) -> Interference:
    """Slowdown of compute by a transfer, and of a transfer by compute.

    Args:
        world: this rank; all ranks call this
        kind: "AR": an all-reduce over all ranks; "SEND": messages between pairs of ranks; `REDUCES`: many small
            reductions to owners, each of which a thread of the library has to be woken for

    Returns:
        Ratios of means over rounds, the same on every rank.
    """
    piece = _piece(world)
    post = _post(world, kind)
    started_s = time.perf_counter()
    _round(piece, post, world, _PIECES // _MOST_ROUNDS)
    warm_up_s = largest(world, time.perf_counter() - started_s)
    rounds = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(BOX_S / warm_up_s)))
    # With fewer rounds, each has longer transfers and more pieces during them; the pieces alone are as many in total.
    times = [_round(piece, post, world, _PIECES // rounds) for _ in range(rounds)]
    # Ratios of means, not means of ratios: other programs disturb the parts of a short round unequally.
    alone_s, transfer_s, piece_together_s, transfer_together_s = (
        summarize([column], how="", waits=True).seconds for column in zip(*times, strict=True)
    )
    factors = torch.tensor([piece_together_s / alone_s, transfer_together_s / transfer_s], dtype=torch.float64)
    factors = factors.to(world.device)
    dist.all_reduce(factors)
    compute, communication = (max(1.0, float(value) / world.size) for value in factors)
    transfers = {SEND: "messages of 1 MiB", REDUCES: "queues of reductions of 16 KiB"}.get(kind, "all-reduces of 1 MiB")
    return Interference(
        compute=compute,
        communication=communication,
        source=f"measured: matrix products during {transfers}, {world.size} ranks",
    )


def _round(
    piece: Work, post: Callable[[], list[dist.Work]], world: World, pieces: int
) -> tuple[float, float, float, float]:
    """Seconds of a piece and of a transfer, each alone, and of both side by side."""
    dist.barrier()
    alone_s = _compute_alone(piece, world, pieces)
    dist.barrier()
    transfer_s = _transfer_alone(post)
    dist.barrier()
    return alone_s, transfer_s, *_together(piece, post, world)


def _piece(world: World) -> Work:
    a = torch.ones(_WIDTH, _WIDTH, device=world.device)
    out = torch.empty_like(a)

    def work() -> None:
        for _ in range(4):
            torch.mm(a, a, out=out)

    return work


def _post(world: World, kind: str) -> Callable[[], list[dist.Work]]:
    if kind == REDUCES:
        buffers = cycle([torch.zeros(_SMALL_BYTES // 4, device=world.device) for _ in range(QUEUE)])
        return lambda: _reduced(buffers)
    tensor = torch.zeros(NBYTES // 4, device=world.device)
    if kind != SEND:
        return lambda: _posted(dist.all_reduce(tensor, async_op=True))
    # Pairs (0, 1), (2, 3), ...; the last of an odd number of ranks has no partner and only computes.
    partner = world.rank ^ 1
    if partner >= world.size:
        return list
    if world.rank < partner:
        return lambda: _posted(dist.isend(tensor, partner))
    return lambda: _posted(dist.irecv(tensor, partner))


def _reduced(buffers: Iterator[torch.Tensor]) -> list[dist.Work]:
    if dist.group.WORLD is not None:
        queue_reduces(buffers, dist.group.WORLD)
    return []


def _posted(work: dist.Work | None) -> list[dist.Work]:
    return [] if work is None else [work]


def _compute_alone(piece: Work, world: World, pieces: int) -> float:
    piece()
    synchronize(world)
    start_s = time.perf_counter()
    for _ in range(pieces):
        piece()
    synchronize(world)
    return (time.perf_counter() - start_s) / pieces


def _transfer_alone(post: Callable[[], list[dist.Work]]) -> float:
    start_s = time.perf_counter()
    for _ in range(_TRANSFERS):
        for work in post():
            work.wait()
    return (time.perf_counter() - start_s) / _TRANSFERS


def _together(piece: Work, post: Callable[[], list[dist.Work]], world: World) -> tuple[float, float]:
    """Seconds a piece and seconds a transfer, side by side."""
    transfer_s: list[float] = []
    thread = threading.Thread(target=lambda: transfer_s.append(_transfer_alone(post)))
    pieces = 0
    start_s = time.perf_counter()
    thread.start()
    while pieces == 0 or thread.is_alive():
        piece()
        pieces += 1
        synchronize(world)
    piece_s = (time.perf_counter() - start_s) / pieces
    thread.join()
    return piece_s, transfer_s[0]
