"""What messages and collectives take between the ranks of this machine.

Each transfer is timed from the moment its last member is ready to the moment its last member has the result. On one
machine the monotonic clock is the same for all processes, so the times of the ranks are compared directly. A barrier
before each transfer keeps one from running into the next.

    rank 0   ──barrier──┤ start ══════ all-reduce ═════╡ end
    rank 1   ────barrier───┤ start ═══ all-reduce ══════╡ end
                           └────── the sample ──────────┘

How often, follows from what one takes, so that a slow link takes about as long to measure as a quick one:

    first pass   all transfers, from small to large     says what each takes; a size that would take longer than
                                                        `LONGEST_S` is left out, with those above it
    rounds       each as often as fits a short time     as many rounds as fit what is left of `BOX_S`

Where a transfer takes long, it is bytes on the wire that take it: beyond the last size the curve goes on in a straight
line, three samples a round say as much as many, and from `_LONG_S` on one does, with none before it.

Runs inside the ranks; imports torch.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from trimaran.costs.tables import Curve, CurveKey
from trimaran.costs.transfers import HOST, QUEUED
from trimaran.measure.handling import SIZES as HANDLING_SIZES
from trimaran.measure.handling import measure_handling
from trimaran.measure.rounds import largest
from trimaran.measure.samples import Rounds, summarize
from trimaran.measure.transfers import OF_16_BITS, QUEUE, make_memory, make_transfer
from trimaran.runtime.event_loops import calm_event_loops
from trimaran.runtime.letterbox import Letterbox
from trimaran.runtime.letterboxes import open_letterboxes
from trimaran.runtime.world import World

SIZES = (16, 1024, 16 * 1024, 128 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024)
"""Sizes at which curves are measured [bytes]."""

BOX_S = 10.0
"""Time for all transfers of a link together [s]; one round at least is run, where that takes longer."""

LONGEST_S = 0.3
"""No size is measured that would take longer, in a straight line through the two sizes before it [s]."""

ROUNDS = 3
_SAMPLES_S = 0.03
# Most of what is timed there is compute beside the transfer, which does not count.
_HANDLING_S = 0.1
_LEAST_REPEATS, _MOST_REPEATS = 3, 20
# What takes longer is run once a round.
_LONG_S = 0.1
_LEAST_TELLING = 128 * 1024
_LARGE = 4 * 1024 * 1024
_LARGEST_QUEUED = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class _Point:
    """A size of a curve.

    Attributes:
        key: of the curve
        nbytes: the size [bytes]
        seconds: that one takes with all that is around it, the same on every rank [s]
        first: what was measured in the first pass
        rounds: what was measured
    """

    key: CurveKey
    nbytes: int
    seconds: float
    first: list[float] = field(default_factory=list)
    rounds: Rounds = field(default_factory=list)

    @property
    def repeats(self) -> int:
        """How often it is run in a round."""
        box_s = _HANDLING_S if self.key.kind.endswith(HOST) else _SAMPLES_S
        least = _LEAST_REPEATS if self.seconds < _LONG_S else 1
        return max(least, min(_MOST_REPEATS, int(box_s / self.seconds)))

    @property
    def round_s(self) -> float:
        """What it takes in a round, with the one that does not count [s]; `seconds` of handling has one of its own."""
        untimed = 0 if self.key.kind.endswith(HOST) else _untimed(self.repeats)
        return (untimed + self.repeats) * self.seconds


def measure_curves(world: World, keys: Sequence[CurveKey], *, sizes: Sequence[int] = SIZES) -> dict[CurveKey, Curve]:
    """Time the transfers that are asked for.

    Args:
        world: this rank; all ranks call this with the same keys
        keys: which transfers, between the first so many ranks
        sizes: at which sizes, as far as they do not take too long, ascending [bytes]

    Returns:
        The curves, on every rank.
    """
    bench = _Bench(world, keys, sizes)
    started_s = time.perf_counter()
    points = [point for key in keys for point in _first_pass(bench, key, sizes)]
    spent_s = largest(world, time.perf_counter() - started_s)
    rounds = _count_rounds(spent_s, sum(point.round_s for point in points))
    for _ in range(rounds):
        for point in points:
            point.rounds.append(bench.run(point.key, point.nbytes, point.repeats))
    bench.close()
    return _curves(points, how=f"{world.backend}, {rounds} rounds")


def _first_pass(bench: "_Bench", key: CurveKey, sizes: Sequence[int]) -> list[_Point]:
    """The sizes of a curve that do not take too long, each with what it takes."""
    points: list[_Point] = []
    for nbytes in _sizes(key, sizes):
        if _expected_s(points, nbytes) > LONGEST_S:
            break
        if not points:
            bench.run(key, nbytes, 1)  # connects
        seconds, first = bench.timed(key, nbytes)
        if seconds < _SAMPLES_S:
            # The first time is longer, by what decides how often a short one can be repeated.
            seconds, first = bench.timed(key, nbytes)
        points.append(_Point(key=key, nbytes=nbytes, seconds=seconds, first=first))
    return points


def _expected_s(points: Sequence[_Point], nbytes: int) -> float:
    """What the next size will take, in a straight line through the two before it [s].

    0 where these are too small to tell: what scheduling adds to them differs by more than what their bytes take.
    """
    if len(points) < 2 or points[-1].nbytes < _LEAST_TELLING:
        return 0.0
    before, last = points[-2:]
    slope = max(0.0, last.seconds - before.seconds) / (last.nbytes - before.nbytes)
    return last.seconds + slope * (nbytes - last.nbytes)


def _count_rounds(spent_s: float, round_s: float) -> int:
    """How many rounds fit what is left of the box: two at least, but for a box that one fills."""
    least = 2 if spent_s + round_s < BOX_S else 1
    return max(least, min(ROUNDS, int((BOX_S - spent_s) / max(round_s, 1e-9))))


def _curves(points: Iterable[_Point], *, how: str) -> dict[CurveKey, Curve]:
    curves: dict[CurveKey, Curve] = {}
    for point in points:
        # One round alone would have an interval without width.
        rounds = point.rounds if len(point.rounds) > 1 else [point.first, *point.rounds]
        cost = summarize(rounds, how=how, waits=True)
        curves[point.key] = (*curves.get(point.key, ()), (point.nbytes, cost))
    return curves


class _Bench:
    """Runs transfers on all ranks and times them.

    Args:
        world: this rank; all ranks call everything here in the same order
        keys: which transfers
        sizes: up to the last of these [bytes]
    """

    def __init__(self, world: World, keys: Sequence[CurveKey], sizes: Sequence[int]) -> None:
        self._world = world
        self._groups = {ranks: dist.new_group(list(range(ranks))) for ranks in sorted({key.ranks for key in keys})}
        self._memory = make_memory(world, max(sizes))
        calm_event_loops()
        self._boxes = _letterboxes(world, sizes)

    def run(self, key: CurveKey, nbytes: int, repeats: int) -> list[float]:
        """Durations of so many transfers, the same list on every rank [s]."""
        world, group = self._world, self._groups[key.ranks]
        takes_part = world.rank < key.ranks
        if key.kind.endswith(HOST):
            own = measure_handling(world, key, nbytes, group, self._boxes, repeats=repeats) if takes_part else []
            return _of_rank_0(own, world)
        times: list[tuple[float, float]] = []
        if takes_part:
            transfer = make_transfer(world, key, nbytes, group, self._boxes, self._memory)
            untimed = _untimed(repeats)
            times = [_time_once(transfer, world, group) for _ in range(untimed + repeats)][untimed:]
        depth = QUEUE if key.kind.endswith(QUEUED) else 1
        return [seconds / depth for seconds in _last_to_last(times, world)]

    def timed(self, key: CurveKey, nbytes: int) -> tuple[float, list[float]]:
        """What one takes on the slowest rank with all that is around it, and its duration; alike on every rank [s]."""
        started_s = time.perf_counter()
        durations = self.run(key, nbytes, 1)
        return largest(self._world, time.perf_counter() - started_s), durations

    def close(self) -> None:
        """End the letterboxes."""
        for box in self._boxes:
            box.close()


def _untimed(repeats: int) -> int:
    """Transfers that are run before those that count: a connection that was idle starts slowly."""
    return 1 if repeats > 1 else 0


def _sizes(key: CurveKey, sizes: Sequence[int]) -> Sequence[int]:
    if key.kind.endswith(QUEUED):
        return [size for size in sizes if size <= _LARGEST_QUEUED]
    if key.kind in OF_16_BITS:
        # Beyond it goes on as that of whole numbers does.
        return [size for size in sizes if size <= _LARGE]
    return [size for size in sizes if size in HANDLING_SIZES] if key.kind.endswith(HOST) else sizes


def _letterboxes(world: World, sizes: Sequence[int]) -> list[Letterbox]:
    """Between ranks 0 and 1, as the runtime has them: one on each of them, or none."""
    if world.size < 2 or world.device != "cpu":
        return []
    return list(open_letterboxes({(0, 1): 2 * max(*sizes, *HANDLING_SIZES)}, world, dist.group.WORLD).values())


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
