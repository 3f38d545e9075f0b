"""Measurements in rounds, on all ranks at once.

    warm-up   a  b  c         does not count; says how long each takes, and so how many rounds there is time for
    round 0   a  b  c         each starts when all ranks have come, so that all are busy with the same
    round 1   a  b  c         changes over seconds affect all alike, and show as a difference between rounds

What a plan for one device needs is measured on rank 0 alone, while the others wait: cores share caches, and often more.
Runs inside the ranks; imports torch.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trimaran.launch.world import World
from trimaran.measure.findings import Rounds, Timed
from trimaran.measure.wanted import WholeRun
from trimaran.runtime.data.batch_shares import Share
from trimaran.runtime.data.pipeline import Feed
from trimaran.user_code.datasets import describe

BOX_S = 6.0
"""Time for all rounds together [s]; two rounds are run in any case, one where that would take far longer."""

MOST_ROUNDS = 7
_REPEATS = 4
_LEAST_WARM_UPS = 3
_MOST_WARM_UPS = 8
_SHORT_S = 0.05
_LONG_S = 1.0
"""An item that takes longer is warm after one run; where time is short, the second one is what counts [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something to be measured once a round.

    Attributes:
        label: for people
        run: runs it a number of times, and returns the durations [s]
        alone: rank 0 runs it, and the others wait
        whole: what it runs, where it may fail: it raises before it waits for other ranks
    """

    label: str
    run: Callable[[int], Mapping[Timed, list[float]]]
    alone: bool = False
    whole: WholeRun | None = None


def measure_in_rounds(
    world: World, items: Sequence[Item], *, box_s: float | None = None, failed: dict[WholeRun, str] | None = None
) -> dict[Timed, Rounds]:
    """Measure all items, round after round.

    Args:
        world: this rank; all ranks call this with items alike, in the same order
        items: what to measure
        box_s: time for all rounds together [s]; None: `BOX_S`
        failed: gets what an item that may fail raised on this rank, "" where it raised on others only; it is left out

    Returns:
        The durations, one group a round [s].
    """
    box_s = BOX_S if box_s is None else box_s
    working: list[tuple[Item, int, Mapping[Timed, list[float]] | None]] = []
    needed_s = 0.0
    for number, item in enumerate(items):
        report(world, f"warming up: {item.label}", number, len(items))
        seconds, raised, last = _warm_up(world, item)
        if raised is not None and failed is not None and item.whole is not None:
            failed[item.whole] = raised
            continue
        repeats = _REPEATS if seconds < _SHORT_S else 1
        working.append((item, repeats, last))
        needed_s += seconds * repeats
    rounds: dict[Timed, Rounds] = {}
    is_long = needed_s >= box_s
    count = max(1 if is_long else 2, min(MOST_ROUNDS, int(box_s / max(needed_s, 1e-9)))) if working else 0
    for number in range(count):
        report(world, "measuring operations", number, count)
        for item, repeats, last in working:
            found = last if is_long and last is not None else _run(world, item, repeats)
            for timed, durations in found.items():
                rounds.setdefault(timed, []).append(durations)
    return rounds


def report(world: World, what: str, done: int = 0, total: int = 0) -> None:
    """Tell the parent what is measured, and how many of how many parts are done; rank 0 does."""
    if world.rank == 0:
        world.report({"measuring": what, "done": done, "total": total})


def _warm_up(world: World, item: Item) -> tuple[float, str | None, Mapping[Timed, list[float]] | None]:
    """Run something until it is warm.

    Returns:
        Seconds of a run on the slowest rank, the same on every rank; what it raised; and what the last run measured,
        where it was a long one and warm, on every rank.
    """
    seconds = float("inf")
    measured: Mapping[Timed, list[float]] = {}
    for number in range(_MOST_WARM_UPS):
        raised = ""
        start_s = time.perf_counter()
        try:
            measured = _run(world, item, 1)
            took_s = time.perf_counter() - start_s
        except Exception as error:
            if item.whole is None:
                raise
            took_s, raised = float("inf"), describe(error)
        before, seconds = seconds, largest(world, took_s)
        if seconds == float("inf"):
            return seconds, raised, None
        # A compiled model is compiled again as its modes and sizes come, so the last run may still be a long one.
        least = _LEAST_WARM_UPS if seconds < _LONG_S else 2
        settled = number >= least - 1 and seconds > before / 2
        if settled or seconds > BOX_S:
            break
    return seconds, None, measured if seconds >= _LONG_S and number > 0 else None


def _run(world: World, item: Item, repeats: int) -> Mapping[Timed, list[float]]:
    meet(world)
    try:
        return {} if item.alone and world.rank else item.run(repeats)
    finally:
        if item.alone:
            meet(world)


def meet(world: World) -> None:
    """Wait until all ranks have come."""
    if world.size > 1:
        dist.barrier()


def largest(world: World, value: float) -> float:
    """The largest of the values that the ranks have; all call it."""
    if world.size == 1:
        return value
    shared = torch.tensor([value], dtype=torch.float64, device=world.device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)


def full_shares(feed: Feed) -> Iterator[Share]:
    """This rank's shares of full global batches, of one epoch after another; of smaller ones where none is full.

    Args:
        feed: of the training data
    """
    full = 0
    while True:
        for number, share in enumerate(feed.shares()):
            # The first one is full, or there is no full one.
            full = share.samples if not number else full
            if share.samples == full:
                yield share
