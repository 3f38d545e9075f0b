"""A strategy with its stages split: by time, by modules that are kept on a row, and if needed by memory.

Where to split a network into pipeline stages.

The problem: operations 1..n in the order in which the model runs them, each with a time; a set of legal split points
between them; K segments. Choose K - 1 splits so that the largest time of a segment is smallest, and among those choices
the fewest bytes cross; only such segments count as are admitted, for their memory, or because an operation is kept on a
row.

    T(k, j) = min over legal split points i < j, with i+1..j admitted as segment k, of max(T(k-1, i), t(i, j)),
    t(i, j) = time of operations i+1..j

Links count where they are slow. Orders in which a stage has no more microbatches in flight than stages follow it, as
1F1B, leave messages no slack: each stage waits for what goes to those behind it and comes back. So where messages make
the order of the stages longer, choices at whose splits the busiest link has less and less to do are made, and the one
is taken by which the order ends first (`order_bounds.earliest_ends`). With several segments a row links do not count.
BERT-large on 64 V100 over 10 Gbit/s takes 1.20 s a step so, 1.41 s where bytes do not count. PipeDream's recurrence,
the larger of each stage and each link, sees nothing of it: a message of 10 ms is less than a stage of 14 ms.

A row with several segments does all of them for each microbatch: there the sums of rows are made equal, then the
segments, and of several such splits the one is taken by which the schedule ends first.

Contiguous segments only: a placement that is not a chain is another problem. The recurrence is exact for its objective;
the simulator then prices the schedule of the segments. With several segments a row, each must be admitted
by itself (each has its part of a device).

Memory of a pipeline stage, so that stages can be split for the memory of their devices.

A stage holds its state all the time and, of each microbatch in flight there, the tensors that autograd keeps, that it
received, and that it sends. Early stages of 1F1B have more microbatches in flight than late ones, so they must be
shorter than a split by time alone makes them.

    need(k, i, j) = state of operations i+1..j + (in flight(k) - 1) · kept + the largest forward or backward

Where a row has several segments, each may have an equal part of its device. The simulator adds the parts left out: a
split that it finds too large is rejected after all.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, product

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import InfeasibleError
from trimaran.graph.types import Graph, TensorSpec, of_graph
from trimaran.machine.types import Allocation
from trimaran.planner.order_bounds import earliest_ends
from trimaran.pricing.compute import operation_seconds
from trimaran.pricing.tables import CostTable
from trimaran.pricing.transfers import transfer_cost
from trimaran.program.layout import Layout
from trimaran.program.lowering.schedules import COMPLETING, Compute, Order, order_of, play
from trimaran.program.lowering.tensor_parallel import chosen_regions
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction, Kind

Admit = Callable[[int, Sequence[int]], NDArray[np.bool_]]
"""Which operations may be the segment of some number: `admit(segment, places)[i, j]` says whether those from place i up
to place j may; a place is the number of operations before it."""


def partition(
    graph: Graph,
    seconds: Mapping[str, float],
    *,
    stages: int,
    chunks: int = 1,
    admit: Admit | None = None,
    torn: Collection[int] = (),
    order: Order | None = None,
    links: "StageLinks | None" = None,
) -> tuple[str, ...]:
    """Split a graph into segments so that stages have the most equal time, and slow links little to do.

    With several segments a stage the sum of a stage decides, and how the stages fill and drain: an operation that
    cannot be split, such as a loss over a large vocabulary, leaves no split with equal segments and equal stages. Then
    the one is taken by which the order ends first.

    Args:
        graph: the network
        seconds: time of each operation, forward and backward together, by operation id [s]
        stages: number of stages, at least 1
        chunks: segments of each stage, dealt in turn
        admit: which segments count; None: all
        torn: places in the order of operations where no segment may end
        order: of the segments of each stage, by which splits are compared where a stage has several; None: only the
            sums of stages are made equal
        links: between stages that have one segment each; None: they do not count

    Returns:
        The last operation of every segment but the last.

    Raises:
        InfeasibleError: the graph has fewer legal split points than needed, or not all segments can be admitted at once
    """
    segments = stages * chunks
    if segments == 1:
        return ()
    if len(graph.split_points) < segments - 1:
        reason = f": {graph.notes[0]}" if graph.notes else ""
        raise InfeasibleError(
            f"{graph.name} can be split in {len(graph.split_points)} places, {segments} stages need {segments - 1}"
            f"{reason}",
            code="plan.too-few-splits",
            splits=len(graph.split_points),
            stages=segments,
        )
    splits = [(end, nbytes) for end, nbytes in zip(_positions(graph), _bytes_at(graph), strict=True) if end not in torn]
    ends, work = [end for end, _ in splits], _cumulated(graph, seconds)
    places = [0, *ends, len(graph.ops)]
    allowed = None if admit is None else [admit(segment, places) for segment in range(segments)]
    crossing = [nbytes for _, nbytes in splits]
    best = _best_splits(ends, work, crossing, segments, allowed)
    if best is not None and links is not None:
        best = _with_links(best, ends, work, crossing, allowed, links)
    if best is None:
        raise InfeasibleError(
            f"no way to split {graph.name} into {segments} stages gives each what its device can hold and what is kept "
            "there",
            code="plan.no-split-fits",
            splits=len(graph.split_points),
            stages=segments,
        )
    if chunks > 1:
        found = [best, _balance(best, ends, work, stages, allowed)]
        best = found[-1] if order is None else _quickest(found, ends, work, order, chunks, allowed)
    return tuple(graph.ops[ends[index] - 1].id for index in best)


def _positions(graph: Graph) -> list[int]:
    order = {op.id: index + 1 for index, op in enumerate(graph.ops)}
    return [order[split] for split in graph.split_points]


def _cumulated(graph: Graph, seconds: Mapping[str, float]) -> list[float]:
    work = [0.0]
    for op in graph.ops:
        work.append(work[-1] + seconds[op.id])
    return work


@of_graph
def _bytes_at(graph: Graph) -> list[float]:
    """Bytes a sample that cross each split [bytes]."""
    made: dict[str, tuple[int, float]] = {}
    last_use: dict[str, int] = {}
    for index, op in enumerate(graph.ops):
        for name in op.inputs:
            last_use[name] = index
        for spec in op.outputs:
            made[spec.name] = (index, spec.nbytes.at(1))
    ends = _positions(graph)
    return [sum(size for name, (index, size) in made.items() if index < end <= last_use.get(name, -1)) for end in ends]


_Allowed = Sequence[NDArray[np.bool_]]
"""For each segment, whether it may reach from one place to another: the begin, each split, and the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLinks:
    """Links between stages that follow each other.

    Attributes:
        strategy: its stages, microbatches and schedule
        seconds: for each split of the stages, how long a byte a sample that crosses there keeps a link busy in a
            microbatch, each way [s/byte]
    """

    strategy: Strategy
    seconds: Sequence[float]

    def step_s(self, stages_s: Sequence[float], links_s: Sequence[float]) -> float:
        """When the last stage ends at the earliest [s].

        Args:
            stages_s: a microbatch on each stage, forward and backward [s]
            links_s: a message over the link behind each but the last [s]
        """
        steps = {}
        for stage, seconds in enumerate(stages_s):
            forward, rest = _FORWARD_SHARE * seconds, (1.0 - _FORWARD_SHARE) * seconds
            steps[Kind.FORWARD, stage] = forward
            if self.strategy.schedule == "zero-bubble":
                steps[Kind.BACKWARD_INPUT, stage] = steps[Kind.BACKWARD_WEIGHT, stage] = rest / 2.0
            else:
                steps[Kind.BACKWARD, stage] = rest
        there = {(stage, stage + 1): seconds for stage, seconds in enumerate(links_s)}
        back = {(stage + 1, stage): seconds for stage, seconds in enumerate(links_s)}
        # A stale pipeline has the order of 1F1B, step after step.
        schedule = "1f1b" if self.strategy.is_stale else self.strategy.schedule
        return max(earliest_ends(dataclasses.replace(self.strategy, schedule=schedule), steps, there, back))


_FELT = 0.01
"""Share of a step that messages must add before splits are looked for at which links have less to do."""

_MOST_LEVELS = 8
"""Splits that are looked for, each with less for the busiest link."""


def _with_links(
    best: list[int],
    ends: Sequence[int],
    work: Sequence[float],
    crossing: Sequence[float],
    allowed: _Allowed | None,
    links: StageLinks,
) -> list[int]:
    """The splits by which a step ends first, of those that make the largest segment smallest where links are free.

    Args:
        best: such splits, whatever the links, by number
        ends: of all splits, in the order of operations
        work: of all operations before each place [s]
        crossing: bytes a sample at each split [bytes]
        allowed: which segments count; None: all
        links: between the stages
    """
    busy = np.outer(links.seconds, crossing)
    rows, segments = np.arange(len(best)), len(best) + 1

    def times(splits: Sequence[int]) -> tuple[list[float], list[float]]:
        places = [0, *(ends[split] for split in splits), len(work) - 1]
        return [work[after] - work[before] for before, after in pairwise(places)], busy[rows, splits].tolist()

    stages_s, links_s = times(best)
    # No microbatch waits for longer than all of its messages one after the other.
    if 2.0 * sum(links_s) <= _FELT * max(stages_s):
        return best
    least_s, microbatches = links.step_s(stages_s, links_s), links.strategy.microbatches
    if least_s <= (1.0 + _FELT) * microbatches * max(stages_s):
        return best
    if least_s <= (1.0 + _FELT) * links.step_s(stages_s, [0.0] * len(links_s)):
        return best
    found = best
    every = np.ones((len(ends) + 2, len(ends) + 2), dtype=bool)
    for _ in range(_MOST_LEVELS):
        below = busy < busy[rows, found].max() * (1.0 - 1e-9)
        free = [every if allowed is None else allowed[segment] for segment in range(segments)]
        for segment in range(segments - 1):
            free[segment] = free[segment] & np.concatenate(([True], below[segment], [True]))
        less = _best_splits(ends, work, crossing, segments, free)
        if less is None:
            break
        found, (stages_s, links_s) = less, times(less)
        if microbatches * max(stages_s) >= least_s:
            break  # with less for the links no stage is shorter
        seconds = links.step_s(stages_s, links_s)
        if seconds < least_s:
            least_s, best = seconds, found
    return best


def _best_splits(
    ends: Sequence[int], work: Sequence[float], crossing: Sequence[float], segments: int, allowed: _Allowed | None
) -> list[int] | None:
    """The splits that make the largest segment smallest; of equal ones those with the fewest bytes, then the first."""
    if len(ends) < segments - 1:
        return None
    at, done, nbytes = np.array(ends), np.array(work), np.array(crossing)
    # For each split, of the best first segments that end there: the largest, the bytes of all their splits, the place
    # of their splits among those of all others in lexicographic order; infinite where there are none.
    largest, total = done[at], nbytes
    if allowed is not None:
        largest = np.where(allowed[0][0, 1:-1], largest, np.inf)
    rank, columns = np.arange(len(ends)), np.arange(len(ends))
    chosen: list[NDArray[np.int64]] = []
    earlier = np.triu(np.ones((len(ends), len(ends)), dtype=bool), 1)
    sizes = np.where(earlier, done[at][None, :] - done[at][:, None], np.inf)
    for segment in range(1, segments - 1):
        inside = sizes if allowed is None else np.where(allowed[segment][1:-1, 1:-1], sizes, np.inf)
        ways = np.maximum(largest[:, None], inside)
        before = _first_best(ways, total, rank)
        largest = np.where(before >= 0, ways[before, columns], np.inf)
        total = total[before] + nbytes
        rank = np.argsort(np.argsort(rank[before] * len(ends) + columns, kind="stable"), kind="stable")
        chosen.append(before)
    ways = np.maximum(largest, done[-1] - done[at])
    if allowed is not None:
        ways = np.where(allowed[-1][1:-1, -1], ways, np.inf)
    last = int(_first_best(ways[:, None], total, rank)[0])
    if last < 0:
        return None
    found = [last]
    for before in reversed(chosen):
        found.append(int(before[found[-1]]))
    return found[::-1]


def _first_best(ways: NDArray[np.float64], total: NDArray[np.float64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each column, the best row: the smallest, then the fewest bytes, then the first; -1: none is finite."""
    smallest = ways.min(axis=0)
    bytes_of = np.where(ways == smallest, total[:, None], np.inf)
    ranks = np.where(bytes_of == bytes_of.min(axis=0), rank[:, None], len(rank))
    return np.where(np.isfinite(smallest), ranks.argmin(axis=0), -1)


_MOST_SWEEPS = 200


def _balance(
    splits: Sequence[int], ends: Sequence[int], work: Sequence[float], stages: int, allowed: _Allowed | None
) -> list[int]:
    """Move splits until no one of them makes stages, each the sum of its segments, more equal.

    A stage does all of its segments for each microbatch, so the largest sum decides; equal segments shorten the filling
    and the draining. The squares of both are made small first, which leaves no stage of two neighbours that could give
    to each other; then the largest sum.

    Args:
        splits: that make the largest segment smallest, by number
        ends: of all splits, in the order of operations
        work: of all operations before each place [s]
        stages: number of stages
        allowed: which segments count; None: all
    """
    found = [-1, *splits, len(ends)]
    place = [0, *ends, len(work) - 1]
    segments = len(splits) + 1

    def size(segment: int, first: int, last: int) -> float:
        return work[place[last + 1]] - work[place[first + 1]]

    times = [size(number, found[number], found[number + 1]) for number in range(segments)]
    rows = [sum(times[row::stages]) for row in range(stages)]

    def key(largest: bool, number: int, middle: int) -> tuple[float, ...]:
        """What two segments at a split, and their stages, would have."""
        one = size(number, found[number], middle)
        other = size(number + 1, middle, found[number + 2])
        row, following = number % stages, (number + 1) % stages
        mine = rows[row] - times[number] + one
        its = rows[following] - times[number + 1] + other
        squares = mine * mine + its * its + (one * one + other * other) * stages / segments
        return (max(mine, its), squares) if largest else (squares,)

    for largest in (False, True):
        for _ in range(_MOST_SWEEPS):
            moved = False
            for number in range(segments - 1):
                now = found[number + 1]
                best, least = now, key(largest, number, now)
                for middle in range(found[number] + 1, found[number + 2]):
                    new = key(largest, number, middle)
                    if new >= least or (new[0] > least[0] * (1.0 - 1e-9) and len(new) == 1):
                        continue
                    if allowed is not None and not (
                        allowed[number][found[number] + 1, middle + 1]
                        and allowed[number + 1][middle + 1, found[number + 2] + 1]
                    ):
                        continue
                    best, least = middle, new
                if best != now:
                    found[number + 1], moved = best, True
                    for changed in (number, number + 1):
                        times[changed] = size(changed, found[changed], found[changed + 1])
                    for row in {number % stages, (number + 1) % stages}:
                        rows[row] = sum(times[row::stages])
            if not moved:
                break
    return found[1:-1]


_MOST_EVENTS = 60_000
"""Steps of compute that are played to compare splits."""

_FORWARD_SHARE = 1.0 / 3.0
"""Of the work of a segment, where only its order is looked at: a backward does twice the work of a forward."""


def _quickest(
    starts: Sequence[Sequence[int]],
    ends: Sequence[int],
    work: Sequence[float],
    order: Order,
    chunks: int,
    allowed: _Allowed | None,
) -> list[int]:
    """Splits by which an order of several segments a stage ends soonest, from some splits by moves of one of them.

    Args:
        starts: to begin with, by number; one more is begun with: all of the work in the last segment of each stage
        ends: of all splits, in the order of operations
        work: of all operations before each place [s]
        order: of the segments of each stage
        chunks: segments of each stage
        allowed: which segments count; None: all
    """
    stages, events = len(order), sum(map(len, order))
    segments = stages * chunks

    def makespan(splits: Sequence[int]) -> float:
        places = [0, *(ends[split] for split in splits), len(work) - 1]
        times = [work[after] - work[before] for before, after in pairwise(places)]
        forwards = [one * _FORWARD_SHARE for one in times]
        backwards = [one * (1.0 - _FORWARD_SHARE) for one in times]
        # What a step without anything before it waits for has ended at 0, and is the last entry.
        finished = [0.0] * (len(waits) + 1)
        for number, (segment, is_forward, before, needed) in enumerate(waits):
            start = max(finished[before], finished[needed])
            finished[number] = start + (forwards[segment] if is_forward else backwards[segment])
        return max(finished)

    def is_admitted(splits: Sequence[int]) -> bool:
        places = [0, *(split + 1 for split in splits), len(ends) + 1]
        return allowed is None or all(allowed[number][a, b] for number, (a, b) in enumerate(pairwise(places)))

    thin = stages * (chunks - 1)
    ahead = list(range(thin))
    rest = _best_splits(ends[thin:], work, [0.0] * (len(ends) - thin), stages, None)
    tried = [list(one) for one in starts]
    if rest is not None and is_admitted([*ahead, *(thin + split for split in rest)]):
        tried.append([*ahead, *(thin + split for split in rest)])
    left = _MOST_EVENTS // max(1, events) - len(tried)
    if left < 0:
        return list(starts[-1])
    waits = _waits(order, segments)
    least, best = min((makespan(splits), splits) for splits in tried)
    stride = max(1, len(ends) // segments)
    while stride and left > 0:
        moved = False
        for number in range(len(best)):
            for change in (-stride, stride):
                split = best[number] + change
                floor = best[number - 1] if number else -1
                ceiling = best[number + 1] if number + 1 < len(best) else len(ends)
                if left <= 0 or not floor < split < ceiling:
                    continue
                trial = [*best[:number], split, *best[number + 1 :]]
                if not is_admitted(trial):
                    continue
                left -= 1
                taken = makespan(trial)
                if taken < least * (1.0 - 1e-9):
                    least, best, moved = taken, trial, True
        if not moved:
            stride //= 2
    return best


@functools.lru_cache(maxsize=64)
def _waits(order: Order, segments: int) -> list[tuple[int, bool, int, int]]:
    """The steps of an order, each behind all that it waits for.

    Args:
        order: of a chain of segments
        segments: of the chain

    Returns:
        For each step its segment, whether it is a forward, and the numbers of the step before it on its stage and of
        the one that gives it its input; -1: none.
    """
    steps = [step for row in order for step in row]
    number = {(step.kind, step.segment, step.microbatch): place for place, step in enumerate(steps)}
    needs = [number.get(_needed_by(step, segments), -1) for step in steps]
    ends = list(accumulate((len(row) for row in order), initial=0))
    rows = [range(first, last) for first, last in pairwise(ends)]
    before = [-1 if place in ends else place - 1 for place in range(len(steps))]
    starts = play(rows, {place: () if need < 0 else (need,) for place, need in enumerate(needs)})
    turn = {place: index for index, place in enumerate(sorted(starts, key=starts.__getitem__))} | {-1: -1}
    return [
        (steps[place].segment, steps[place].kind == Kind.FORWARD, turn[before[place]], turn[needs[place]])
        for place in turn
        if place >= 0
    ]


def _needed_by(step: Compute, segments: int) -> tuple[Kind, int, int]:
    """What a step of a chain of segments waits for besides what its stage does before it."""
    kind, segment = step.kind, step.segment
    if kind == Kind.FORWARD:
        return Kind.FORWARD, segment - 1, step.microbatch
    if segment + 1 < segments:
        return Kind.BACKWARD, segment + 1, step.microbatch
    return Kind.FORWARD, segment, step.microbatch


def in_flight(order: Order) -> tuple[int, ...]:
    """For each segment, the most microbatches that are between their forward and the end of their backward.

    Args:
        order: of the segments of each row

    Example:
        >>> from trimaran.program.lowering.schedules import gpipe, one_forward_one_backward
        >>> in_flight(gpipe(2, 4)), in_flight(one_forward_one_backward(2, 4))
        ((4, 4), (2, 1))
    """
    most: dict[int, int] = {}
    for row in order:
        now: dict[int, int] = {}
        for step in row:
            if step.kind == Kind.FORWARD:
                now[step.segment] = now.get(step.segment, 0) + 1
                most[step.segment] = max(most.get(step.segment, 0), now[step.segment])
            elif step.kind in COMPLETING:
                now[step.segment] -= 1
    return tuple(most[segment] for segment in sorted(most))


class _Used:
    """Things that operations use: storages that they keep, tensors that cross, parameters.

    Attributes:
        nbytes: of each [bytes]
        makers: number of the operation that makes each; -1 for an input
        last: number of the last operation that uses each
        returns: whether a gradient comes back along each
    """

    def __init__(self, rows: Sequence[tuple[int, Sequence[int], float, bool]]) -> None:
        """From maker, uses in ascending order, bytes, and whether a gradient comes back.

        Args:
            rows: of each; what nobody uses is left out
        """
        used = [row for row in rows if row[1]]
        self.makers = np.array([maker for maker, _, _, _ in used], dtype=np.int64)
        self.nbytes = np.array([nbytes for _, _, nbytes, _ in used], dtype=np.float64)
        self.last = np.array([uses[-1] for _, uses, _, _ in used], dtype=np.int64)
        self.returns = np.array([returns for _, _, _, returns in used], dtype=bool)
        self._uses = np.array([use for _, uses, _, _ in used for use in uses], dtype=np.int64)
        self._starts = np.cumsum([0, *(len(uses) for _, uses, _, _ in used)], dtype=np.int64)[:-1]

    def next_use(self, first: int, never: int) -> NDArray[np.int64]:
        """The first operation from `first` on that uses each; `never` where none does."""
        if not len(self._uses):
            return self._uses
        return np.minimum.reduceat(np.where(self._uses >= first, self._uses, never), self._starts)


class Runs:
    """Memory of runs of operations [first, last), all ends of one beginning at once.

    Args:
        graph: the job's
        microbatch: samples of one
        state_bytes_per_byte: optimizer state for a byte of parameter [bytes/byte]
    """

    def __init__(self, graph: Graph, microbatch: int, state_bytes_per_byte: float) -> None:
        ops, size = graph.ops, microbatch
        made = {spec.name: (number, spec) for number, op in enumerate(ops) for spec in op.outputs}
        place = {op.id: number for number, op in enumerate(ops)}
        savers: dict[str, list[int]] = {}
        readers: dict[str, list[int]] = {}
        owners: dict[str, list[int]] = {}
        for number, op in enumerate(ops):
            for names, users in ((op.saved, savers), (op.inputs, readers), ((*op.parameters, *op.buffers), owners)):
                for name in dict.fromkeys(names):
                    users.setdefault(name, []).append(number)
        each = {one.name: (2.0 + state_bytes_per_byte if one.trainable else 1.0) for one in graph.parameters}
        held = {one.name: one.nbytes * each[one.name] for one in graph.parameters} | dict(graph.buffers)
        self._saved = _Used(
            [
                (_maker(name, made, place), users, graph.kept_storages[name].at(size), False)
                for name, users in savers.items()
            ]
        )
        self._flowing = _Used(
            [
                (number, readers.get(name, ()), spec.nbytes.at(size), spec.requires_grad)
                for name, (number, spec) in made.items()
            ]
        )
        self._state = _Used([(-1, users, held.get(name, 0.0), False) for name, users in owners.items()])
        self._outputs = np.array(
            [sum(spec.nbytes.at(size) for spec in op.outputs if spec.name not in savers) for op in ops],
            dtype=np.float64,
        )
        self._gradients = np.array(
            [
                sum(spec.nbytes.at(size) for spec in op.outputs if spec.requires_grad)
                + sum(made[name][1].nbytes.at(size) for name in op.inputs if name in made)
                for op in ops
            ],
            dtype=np.float64,
        )
        self._known: dict[int, NDArray[np.float64]] = {}
        self._between: dict[tuple[int, ...], NDArray[np.float64]] = {}

    def look(self, first: int, last: int) -> tuple[float, float, float]:
        """State, kept bytes of a microbatch, and its peak [bytes]."""
        state, kept, fullest = self._from(first)[last - first].tolist()
        return state, kept, fullest

    def between(self, places: Sequence[int]) -> NDArray[np.float64]:
        """The same from each place (first axis) up to each place (second); infinite state where that comes first."""
        key = tuple(places)
        if key not in self._between:
            found = np.zeros((len(key), len(key), 3))
            found[..., 0] = np.inf
            for number, first in enumerate(key):
                found[number, number:] = self._from(first)[np.array(key[number:]) - first]
            self._between[key] = found
        return self._between[key]

    def _from(self, first: int) -> NDArray[np.float64]:
        if first not in self._known:
            self._known[first] = self._look(first)
        return self._known[first]

    def _look(self, first: int) -> NDArray[np.float64]:
        """The same of every end, from `first` itself on: a row each."""
        count = len(self._outputs)
        state = self._until(self._state, self._state.next_use(first, count), first)
        saved = self._saved
        inside = (saved.makers < 0) | (saved.makers >= first)
        # A backward frees what it has used: the first operation that keeps a tensor is the last that reads it.
        kept = self._until(saved, saved.next_use(first, count), first, where=inside)
        gradients = np.maximum.accumulate(self._gradients[first:] + kept[1:])
        backward = np.concatenate(([0.0], gradients - kept[1:]))
        forward = np.concatenate(([0.0], np.maximum.accumulate(self._outputs[first:])))
        flowing, uses = self._flowing, self._flowing.next_use(first, count)
        crossing = self._crossing(uses, first, where=flowing.returns)
        kept = kept + self._crossing(uses, first, where=np.ones_like(flowing.returns))
        return np.stack((state, kept, kept + np.maximum(forward, backward + crossing)), axis=1)

    def _until(
        self, used: _Used, uses: NDArray[np.int64], first: int, where: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float64]:
        """Bytes that operations from `first` on use, by the end."""
        count = len(self._outputs)
        chosen = uses < count if where is None else where & (uses < count)
        added = np.bincount(uses[chosen] - first, weights=used.nbytes[chosen], minlength=count - first)
        return np.concatenate(([0.0], np.cumsum(added)))

    def _crossing(self, uses: NDArray[np.int64], first: int, *, where: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Bytes that come in or go out, by the end: what is made before and used inside, or inside and used behind."""
        flowing, count = self._flowing, len(self._outputs)
        into = self._until(flowing, uses, first, where=where & (flowing.makers < first))
        leaving = where & (flowing.makers >= first) & (flowing.last > flowing.makers)
        change = np.zeros(count - first + 1)
        np.add.at(change, flowing.makers[leaving] + 1 - first, flowing.nbytes[leaving])
        np.subtract.at(change, flowing.last[leaving] + 1 - first, flowing.nbytes[leaving])
        return into + np.cumsum(change)


@of_graph
def _runs_of(graph: Graph) -> dict[tuple[int, float], Runs]:
    """What is known of the runs of a graph, by the microbatch and the optimizer state for a byte of parameter."""
    del graph
    return {}


@dataclass(slots=True)
class StageMemory:
    """Memory of runs of operations as a segment; each run is computed once for all strategies of a search.

    Attributes:
        graph: the job's
        microbatch: samples of one
        state_bytes_per_byte: optimizer state for a byte of parameter [bytes/byte]
        in_flight: for each segment, its microbatches in flight
        limits: memory of each segment [bytes]
        runs: of operations
    """

    graph: Graph
    microbatch: int
    state_bytes_per_byte: float
    in_flight: Sequence[int]
    limits: Sequence[float]
    runs: Runs = field(init=False)

    def __post_init__(self) -> None:
        known, key = _runs_of(self.graph), (self.microbatch, self.state_bytes_per_byte)
        if key not in known:
            known[key] = Runs(self.graph, *key)
        self.runs = known[key]

    def admits(self, segment: int, places: Sequence[int]) -> NDArray[np.bool_]:
        """Whether what lies between two places fits as a segment (`Admit`)."""
        state, kept, fullest = np.moveaxis(self.runs.between(places), -1, 0)
        fits: NDArray[np.bool_] = state + (self.in_flight[segment] - 1) * kept + fullest <= self.limits[segment]
        return fits

    def need(self, segment: int, first: int, last: int) -> float:
        """Memory of operations [first, last) as a segment [bytes]."""
        state, kept, fullest = self.runs.look(first, last)
        return state + (self.in_flight[segment] - 1) * kept + fullest


def _maker(name: str, made: Mapping[str, tuple[int, TensorSpec]], place: Mapping[str, int]) -> int:
    """Number of the operation that makes a storage: of its tensor, or `<operation>/<number>`; -1 for an input."""
    if name in made:
        return made[name][0]
    return place.get(name.rpartition("/")[0], -1)


def split_stages(
    strategy: Strategy,
    graph: Graph,
    table: CostTable,
    *,
    batch: int,
    kept: Mapping[str, int] | None = None,
    admit: Admit | None = None,
    cluster: Allocation | None = None,
) -> Strategy:
    """The strategy with its stages split for the costs of its microbatch.

    Args:
        strategy: with or without boundaries, which are made anew
        graph: the job's
        table: costs of its operations
        batch: samples of one update, over all ranks
        kept: operations that must be on a row, by id
        admit: which segments count too; None: all
        cluster: devices, over whose links messages go; None: links do not count

    Raises:
        InfeasibleError: the graph has too few legal split points, or none that keeps modules on their rows
    """
    if strategy.pp == 1 or strategy.parts:
        return strategy
    microbatch = batch // (strategy.dp * strategy.microbatches)
    seconds = operation_seconds(graph, table, batch=microbatch, execution=strategy.execution)

    def admits(segment: int, places: Sequence[int]) -> NDArray[np.bool_]:
        row = segment % strategy.pp
        elsewhere = [(kept or {}).get(op.id, row) != row for op in graph.ops]
        before = np.cumsum([0, *elsewhere])[list(places)]
        allowed: NDArray[np.bool_] = before[:, None] == before[None, :]
        return allowed if admit is None else allowed & admit(segment, places)

    boundaries = partition(
        graph,
        seconds,
        stages=strategy.pp,
        chunks=strategy.chunks,
        admit=admits if kept or admit else None,
        torn=_inside_regions(graph, strategy),
        order=order_of(strategy) if strategy.chunks > 1 else None,
        links=None if cluster is None or strategy.chunks > 1 else _links(strategy, graph, table, cluster, microbatch),
    )
    return dataclasses.replace(strategy, boundaries=boundaries)


def _links(strategy: Strategy, graph: Graph, table: CostTable, cluster: Allocation, microbatch: int) -> StageLinks:
    """Links between the stages of a strategy, each for as long as the busiest one on the way.

    Other splits are taken to be crossed by as many bytes, which may go over the same links.

    Args:
        strategy: how many stages and replicas there are
        graph: the job's
        table: costs of messages
        cluster: the devices
        microbatch: samples of one
    """
    rows = tuple(range(strategy.pp))
    layout = Layout(dp=strategy.dp, width=strategy.pp, rows=rows, tp=strategy.tp)
    arranged = cluster.ordered(strategy.device_order)
    usual = max(1.0, float(np.median(_bytes_at(graph))))
    nbytes = max(1, round(usual * microbatch))
    busy_s: dict[str, float] = {}
    crossed: list[set[str]] = []
    for here, behind in pairwise(rows):
        crossed.append(set())
        for ends in ((here, behind), (behind, here)):
            for replica, shard in product(range(strategy.dp), range(strategy.tp)):
                sender, receiver = (layout.rank(replica, row, shard) for row in ends)
                message = Instruction(kind=Kind.SEND_FORWARD, rank=sender, peer=receiver, nbytes=nbytes)
                transfer = transfer_cost(message, table, arranged)
                crossed[-1].update(transfer.links)
                for link in dict.fromkeys(transfer.links):
                    busy_s[link] = busy_s.get(link, 0.0) + transfer.flow_share * transfer.seconds
    seconds = tuple(max((busy_s[link] for link in names), default=0.0) / usual for names in crossed)
    return StageLinks(strategy=strategy, seconds=seconds)


def _inside_regions(graph: Graph, strategy: Strategy) -> frozenset[int]:
    """Places in the order of operations where a split would separate operations that are sharded together."""
    if strategy.tp == 1:
        return frozenset()
    place = {op.id: number for number, op in enumerate(graph.ops)}
    torn: set[int] = set()
    for region in chosen_regions(graph, strategy):
        members = [place[name] for name in (*region.columns, *region.inside, *region.rows)]
        torn.update(range(min(members) + 1, max(members) + 1))
    return frozenset(torn)


def split_within(
    strategy: Strategy,
    graph: Graph,
    table: CostTable,
    *,
    batch: int,
    memory_bytes: float,
    kept: Mapping[str, int] | None = None,
    cluster: Allocation | None = None,
) -> Strategy:
    """The strategy with its stages split so that each fits its device, and beyond that by time.

    Args:
        strategy: with or without boundaries, which are made anew
        graph: the job's
        table: costs of its operations, and optimizer state
        batch: samples of one update, over all ranks
        memory_bytes: of each device [bytes]
        kept: operations that must be on a row, by id
        cluster: as for `split_stages`

    Raises:
        InfeasibleError: no split fits
    """
    if strategy.pp == 1 or strategy.parts:
        return strategy
    step = table.steps.get(graph.digest)
    memory = StageMemory(
        graph=graph,
        microbatch=batch // (strategy.dp * strategy.microbatches),
        state_bytes_per_byte=step.state_bytes_per_byte if step else 0.0,
        in_flight=in_flight(order_of(strategy)),
        limits=(memory_bytes / strategy.chunks,) * (strategy.pp * strategy.chunks),
    )
    return split_stages(strategy, graph, table, batch=batch, kept=kept, admit=memory.admits, cluster=cluster)
