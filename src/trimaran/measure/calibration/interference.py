"""How much compute and communication slow each other down on this machine.

Each rank computes in pieces of a fraction of a millisecond, first alone, then while one transfer after another is under
way, as in a backward that overlaps with its all-reduces:

    alone      piece piece piece piece ...                    seconds a piece
    alone      ═══ transfer ═══  ═══ transfer ═══ ...         seconds a transfer
    together   ═══════ transfer ═══════  ═══════ transfer ═══════
               piece  piece  piece  piece  piece  piece  ...

Two sizes tell two things apart. Where every core computes, a thread of the library waits for one, some milliseconds a
transfer whatever its size: that is what a message of a few bytes takes longer, the factor on the latency. What a large
one takes longer than that is the factor on its bytes.

The number of transfers of a round is fixed, so that all ranks post the same ones; a rank computes for as long as its
transfers are under way, and asks after each piece whether they have ended. gloo says so of collectives only: for a
message a thread waits. Messages through memory (`runtime/communication/shared_memory.py`) have no thread but the
ranks', so nothing slows them down. Runs inside the ranks; imports torch.

Two ranks on two cores, an all-reduce alone and while both compute: 16 bytes 0.4 and 12.6 ms on the loopback, 1 MiB 43.7
and 54.9 ms over 200 Mb/s. So compute adds some 6 to 13 ms, a time slice, at every size; one factor on everything would
make steps over slow links 1.34 times too short. Reductions to owners go as fast as alone, as a backward posts each
after some compute; 32 posted at once next to products take 2.5 to 4 times as long, which no step shows.
"""

import threading
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from trimaran.launch.world import World
from trimaran.measure.calibration.links import letterboxes, synchronize
from trimaran.measure.findings import summarize
from trimaran.measure.rounds import largest
from trimaran.pricing.transfers import SEND
from trimaran.pricing.types import Interference

LEAST_BYTES, NBYTES = 16, 1024 * 1024
"""Sizes of the transfers that run while the device computes: one that is latency alone, one of many bytes [bytes]."""

BOX_S = 1.5
"""Time for all rounds of a kind together [s]."""

_LEAST_ROUNDS, _MOST_ROUNDS = 4, 20
_TRANSFERS = 4
_PIECES = 400
_WIDTH = 192

Work = Callable[[], object]
Post = Callable[[], Sequence[dist.Work]]
Ended = Callable[[Sequence[dist.Work]], Callable[[], bool]]
"""Says of transfers that were posted whether they have ended."""


def measure_interference(world: World, kind: str) -> Interference:
    """Slowdown of compute by a transfer, and of a transfer by compute.

    Args:
        world: this rank; all ranks call this
        kind: "AR": an all-reduce over all ranks; "SEND": messages between pairs of ranks

    Returns:
        Ratios of means over rounds, the same on every rank.
    """
    if kind == SEND and _through_memory(world):
        return Interference(source="messages go through memory: no thread but the ranks' takes part")
    (_, small_s, _, small_together_s), (piece_s, large_s, piece_together_s, large_together_s) = (
        _measure(world, kind, nbytes, BOX_S / 2) for nbytes in (LEAST_BYTES, NBYTES)
    )
    flow_s = large_s - small_s
    return Interference(
        compute=max(1.0, piece_together_s / piece_s),
        communication=max(1.0, (large_together_s - small_together_s) / flow_s) if flow_s > 0.0 else 1.0,
        latency=max(1.0, small_together_s / small_s),
        source=f"measured: matrix products during {'messages' if kind == SEND else 'all-reduces'} of 16 B and 1 MiB, "
        f"{world.size} ranks",
    )


def _through_memory(world: World) -> bool:
    """Whether messages between ranks of this run go through shared memory; the same on every rank."""
    boxes = letterboxes(world, (NBYTES,))
    for box in boxes:
        box.close()
    return largest(world, float(bool(boxes))) > 0.0


def _measure(world: World, kind: str, nbytes: int, box_s: float) -> list[float]:
    """Seconds of a piece and of a transfer, each alone, and of both side by side: means over rounds and ranks."""
    piece = _piece(world)
    post = _post(world, kind, nbytes)

    def together() -> tuple[float, float]:
        return _together(piece, post, _waited if kind == SEND else _asked, world)

    started_s = time.perf_counter()
    _round(piece, post, together, world, _PIECES // _MOST_ROUNDS)
    warm_up_s = largest(world, time.perf_counter() - started_s)
    rounds = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(box_s / warm_up_s)))
    # With fewer rounds, each has longer transfers and more pieces during them; the pieces alone are as many in total.
    times = [_round(piece, post, together, world, _PIECES // rounds) for _ in range(rounds)]
    # Ratios of means, not means of ratios: other programs disturb the parts of a short round unequally.
    means = [summarize([column], how="", waits=True).seconds for column in zip(*times, strict=True)]
    shared = torch.tensor(means, dtype=torch.float64, device=world.device)
    dist.all_reduce(shared)
    return [float(value) / world.size for value in shared]


def _round(
    piece: Work, post: Post, together: Callable[[], tuple[float, float]], world: World, pieces: int
) -> tuple[float, float, float, float]:
    """Seconds of a piece and of a transfer, each alone, and of both side by side."""
    dist.barrier()
    alone_s = _compute_alone(piece, world, pieces)
    dist.barrier()
    start_s = time.perf_counter()
    for _ in range(_TRANSFERS):
        _wait(post())
    transfer_s = (time.perf_counter() - start_s) / _TRANSFERS
    dist.barrier()
    return alone_s, transfer_s, *together()


def _piece(world: World) -> Work:
    a = torch.ones(_WIDTH, _WIDTH, device=world.device)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, a, out=out)


def _post(world: World, kind: str, nbytes: int) -> Post:
    tensor = torch.zeros(nbytes // 4, device=world.device)
    if kind != SEND:
        return lambda: _posted(dist.all_reduce(tensor, async_op=True))
    # Pairs (0, 1), (2, 3), ...; the last of an odd number of ranks has no partner and only computes.
    partner = world.rank ^ 1
    if partner >= world.size:
        return list
    if world.rank < partner:
        return lambda: _posted(dist.isend(tensor, partner))
    return lambda: _posted(dist.irecv(tensor, partner))


def _posted(work: dist.Work | None) -> list[dist.Work]:
    return [] if work is None else [work]


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def _asked(works: Sequence[dist.Work]) -> Callable[[], bool]:
    return lambda: all(work.is_completed() for work in works)


# gloo tells of the end of a message once: whoever waits a second time waits for another one.
def _waited(works: Sequence[dist.Work]) -> Callable[[], bool]:
    thread = threading.Thread(target=_wait, args=(works,))
    thread.start()
    return lambda: not thread.is_alive()


def _compute_alone(piece: Work, world: World, pieces: int) -> float:
    piece()
    synchronize(world)
    start_s = time.perf_counter()
    for _ in range(pieces):
        piece()
    synchronize(world)
    return (time.perf_counter() - start_s) / pieces


def _together(piece: Work, post: Post, ended: Ended, world: World) -> tuple[float, float]:
    """Seconds a piece and seconds a transfer, side by side."""
    pieces = 0
    start_s = time.perf_counter()
    for _ in range(_TRANSFERS):
        have_ended = ended(post())
        while not have_ended() or not pieces:
            piece()
            pieces += 1
            synchronize(world)
    together_s = time.perf_counter() - start_s
    return together_s / max(1, pieces), together_s / _TRANSFERS
