"""The problem of a memory plan, in the form in which schedules, bounds and searches need it.

**Units** are the storages worth moving: movable, not small, with a time in which they may be away. They are numbered in
the order in which they are packed for the last time. The **axis** is the step's moments, drawn together: between two
places of the axis nothing changes that a plan can change, so that the largest live bytes between them are all that
matters. Places are ticks, ends of lives, and the moments after first uses.

Recipes recompute storages. They follow from the trace alone: one with the fewest operations, and longer ones.

A recipe goes back from the packed version of its storage, through storages that nobody packs (the input of an addition,
say), to what is there anyway or can be brought back: packed storages at the version that is read, parameters, buffers.
All operations that changed a storage in place up to the wanted version belong to it:

    packed c ──▶ bn ──▶ y, version 0 ──▶ relu_ ──▶ y, version 1, packed        recipe of y: bn, relu_, from c

Every recipe of the storage contains these operations, since storages that nobody packs are recomputed in any case. A
source may itself be recomputed by an earlier step: such chains are decided by the plan.

Longer recipes go on through packed storages, up to a depth, and drop these on the way. They cost more operations, and
save what a chain would hold from the recompute to the use of its sources.

There is no recipe through an operation that cannot be repeated, that would change a source, or where the recipe would
be longer than `MOST_OPS`. What a batch norm writes to its running statistics is left out.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import InputError
from trimaran.graph.trace.live_bytes import live_kept, writers
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp, TraceStorage, Value
from trimaran.memory.minimum import away_span
from trimaran.pricing.offload_costs import MemoryCosts
from trimaran.program.memory import RecomputeRecipe
from trimaran.simulator.memory import recipe_peak

MOST_OPS = 64
_FEW_PAIRS = 0.25


def find_recipes(
    trace: StepTrace,
    costs: MemoryCosts,
    *,
    banned: Collection[int] = frozenset(),
    depth: int = 0,
    most_ops: int = MOST_OPS,
) -> dict[int, tuple[RecomputeRecipe, ...]]:
    """Recipes of every movable storage that has one.

    Args:
        trace: the step
        costs: durations of its operations
        banned: storages whose recipe turned out not to give the same bits
        depth: packed storages in a row that longer recipes go through at most
        most_ops: longest recipe

    Returns:
        By storage, its recipes, each longer than the one before; the first has no more operations than it must.
    """
    finder = _RecipeFinder(trace, banned, most_ops)
    recipes = {}
    for storage in trace.movable:
        found: list[RecomputeRecipe] = []
        for deep in range(depth + 1):
            recipe = None if storage.number in banned else finder.recipe(storage, deep, costs)
            if recipe is None or (found and recipe.ops == found[-1].ops):
                break
            found.append(recipe)
        if found:
            recipes[storage.number] = tuple(found)
    return recipes


class _RecipeFinder:
    """Walks back from a value to sources."""

    def __init__(self, trace: StepTrace, banned: Collection[int], most_ops: int) -> None:
        self.trace = trace
        self.most_ops = most_ops
        self.banned = banned
        self.writers = writers(trace)
        self._made: dict[int, tuple[set[int], set[int]] | None] = {}

    def recipe(self, storage: TraceStorage, depth: int, costs: MemoryCosts) -> RecomputeRecipe | None:
        """The recipe that goes through packed storages up to a depth."""
        made, ops, sources = {storage.number}, set[int](), set[int]()
        edge = {storage.number}
        for deep in range(depth + 1):
            beyond: set[int] = set()
            for number in sorted(edge):
                found = self._shortest(self.trace.storages[number])
                if found is None and deep == 0:
                    return None
                if found is None:
                    sources.add(number)
                    continue
                made.add(number)
                ops |= found[0]
                beyond |= found[1]
            edge = {number for number in beyond - made if self.trace.storages[number].movable}
            sources |= beyond - edge
        sources = (sources | edge) - made
        if len(ops) > self.most_ops or self._changes(ops, sources) or self._stale(ops, sources, storage.unpacks[-1]):
            return None
        moments = tuple(sorted(ops))
        return RecomputeRecipe(
            storage=storage.number,
            ops=moments,
            sources=tuple(sorted(sources)),
            duration_s=float(sum(costs.durations_s[moment] for moment in moments)),
        )

    def _shortest(self, storage: TraceStorage) -> tuple[set[int], set[int]] | None:
        """Operations and sources of the recipe with the fewest operations."""
        if storage.number not in self._made:
            self._made[storage.number] = None if storage.number in self.banned else self._walk(storage)
        return self._made[storage.number]

    def _walk(self, storage: TraceStorage) -> tuple[set[int], set[int]] | None:
        ops: set[int] = set()
        sources: set[int] = set()
        made: set[Value] = set()
        wanted: list[Value] = [(storage.number, storage.version or 0)]
        while wanted:
            value = wanted.pop()
            if value in made:
                continue
            made.add(value)
            moment = self.writers.get(value)
            if moment is None or not self._repeatable(moment) or len(ops) >= self.most_ops:
                return None
            ops.add(moment)
            for need in self._needs(moment):
                if need[0] != storage.number and self._is_source(need, storage.unpacks[-1]):
                    sources.add(need[0])
                else:
                    wanted.append(need)
        if sources & {number for number, _ in made} or self._changes(ops, sources):
            return None
        return ops, sources

    def _repeatable(self, moment: int) -> bool:
        op = self.trace.events[moment]
        return isinstance(op, TraceOp) and op.repeatable

    def _needs(self, moment: int) -> list[Value]:
        """Values that must be there for an operation: what it reads, and earlier versions of what it changes."""
        op = self.trace.events[moment]
        if not isinstance(op, TraceOp):
            return []
        statistics = {number for number, _ in op.writes if self.trace.storages[number].role == Role.BUFFER}
        reads = [value for value in op.reads if value[0] not in statistics]
        changes = [(number, version - 1) for number, version in op.writes if version > 0 and number not in statistics]
        # Sorted, so that a recipe is found in the same way each time.
        return sorted({*reads, *changes})

    def _is_source(self, value: Value, last_use: int) -> bool:
        number, version = value
        storage = self.trace.storages[number]
        if storage.role in (Role.PARAMETER, Role.BUFFER):
            # What takes the place of a parameter, as by `functional_call`, may be gone by then.
            later = self.writers.get((number, version + 1))
            return storage.outside_end > last_use and (later is None or later > last_use)
        return storage.movable and storage.version == version

    def _stale(self, ops: Collection[int], sources: Collection[int], last_use: int) -> bool:
        """Whether a parameter or buffer that is read has changed by the last use."""
        reads = {value for moment in ops for value in self._needs(moment) if value[0] in sources}
        return not all(self._is_source(value, last_use) for value in reads)

    def _changes(self, ops: Collection[int], sources: Collection[int]) -> bool:
        """Whether one of the operations would change a source."""
        events = [self.trace.events[moment] for moment in ops]
        written = {number for event in events if isinstance(event, TraceOp) for number, _ in event.writes}
        return any(self.trace.storages[number].role != Role.BUFFER for number in written.intersection(sources))


# Longer recipes recompute at most this number of packed storages in a row.
DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeWay:
    """A recipe of a unit, with its needs.

    Attributes:
        recipe: operations to run
        extra: most bytes in the making, beyond its own size [bytes]
        sources: units that it reads
        held: (place, size) of kept storages that are no units and that it reads: where they would end otherwise
        ready: first place at which all that it reads was packed; what it makes cannot be released before
    """

    recipe: RecomputeRecipe
    extra: int
    sources: tuple[int, ...]
    held: tuple[tuple[int, int], ...]
    ready: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MovableUnit:
    """A storage that may be moved. Places are indices of `MemoryProblem.places`.

    Attributes:
        number: of the storage
        nbytes: its size [bytes]
        made: moment of the operation that wrote its packed version; its birth where there is no way to make it
        packed: place of its last pack
        gone: first place at which it may be away
        use: place of its first use in the backward; it must be back by then
        over: place at which its last use is over
        to_host_s: time of the copy to the host [s]
        to_device_s: time of the copy back [s]
        ways: to recompute it, the one with the fewest operations first; empty: it cannot be
        coded_s: times of the copies out and back when they are coded; None: that is not faster [s, s]
    """

    number: int
    nbytes: int
    made: int
    packed: int
    gone: int
    use: int
    over: int
    to_host_s: float
    to_device_s: float
    ways: tuple[RecomputeWay, ...]
    coded_s: tuple[float, float] | None = None

    @property
    def recompute_s(self) -> float:
        """Least time to recompute it [s]; infinite where it cannot be."""
        return self.ways[0].recipe.duration_s if self.ways else float("inf")

    @property
    def copies_s(self) -> float:
        """Least time of both copies [s]."""
        return self.to_host_s + self.to_device_s if self.coded_s is None else sum(self.coded_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryProblem:
    """A step whose memory is to be planned.

    Attributes:
        trace: the step
        costs: its durations, and the link to the host
        units: storages that may be moved, in the order of their last packs
        places: first moment of each place, ascending
        live: largest live bytes from each place to the next with no offload or recompute [bytes]
        elapsed_s: time of the operations before each place, and of all [s]
        tick_before: for each place, the last place at or before it that is a tick, -1 where there is none
        tick_after: for each place, the first place after it that is a tick; number of places where there is none
    """

    trace: StepTrace
    costs: MemoryCosts
    units: tuple[MovableUnit, ...]
    places: NDArray[np.int64]
    live: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    tick_before: list[int]
    tick_after: list[int]

    @cached_property
    def elapsed_list(self) -> list[float]:
        """`elapsed_s` as a list."""
        return [float(value) for value in self.elapsed_s]

    @property
    def compute_s(self) -> float:
        """Time of the operations with no offload or recompute [s]."""
        return float(self.elapsed_s[-1])

    @cached_property
    def is_nested(self) -> bool:
        """Whether what is packed first is used last: of few pairs of units the first is used first.

        Of two microbatches that go back in the order in which they came, half of all pairs are in that order.
        """
        uses = np.array([unit.use for unit in self.units], dtype=np.int64)
        earlier = sum(int((uses[number + 1 :] > use).sum()) for number, use in enumerate(uses))
        return earlier <= _FEW_PAIRS * len(uses) * (len(uses) - 1) / 2


def memory_problem(
    trace: StepTrace, costs: MemoryCosts, *, smallest_bytes: int = 0, banned: Collection[int] = frozenset()
) -> MemoryProblem:
    """Draw a trace together to what a memory plan decides about.

    Args:
        trace: the step
        costs: its durations, and the link to the host
        smallest_bytes: smaller storages are kept
        banned: storages that are not to be recomputed

    Raises:
        InputError: the costs are of another trace
    """
    if len(costs.durations_s) != trace.length:
        raise InputError(
            f"the costs have {len(costs.durations_s)} durations, the trace {trace.length} moments: "
            f"price the trace that is planned",
            code="memory-plan.other-trace",
        )
    spans = {storage.number: away_span(trace, storage) for storage in trace.movable}
    chosen = sorted(
        (one for one in trace.movable if one.nbytes >= smallest_bytes and spans[one.number][0] < spans[one.number][1]),
        key=lambda one: (one.packs[-1], one.number),
    )
    places = _places(trace, chosen, spans)
    at = {moment: place for place, moment in enumerate(places.tolist())}
    recipes = find_recipes(trace, costs, banned=banned, depth=DEPTH)
    index = {storage.number: unit for unit, storage in enumerate(chosen)}
    ticks = [place for place, moment in enumerate(places.tolist()) if isinstance(trace.events[moment], Tick)]
    before, after = [-1, *ticks], [*ticks, len(places)]
    drawn = _Drawn(
        trace=trace,
        costs=costs,
        at=at,
        index=index,
        places=places,
        ticks=ticks,
        recipes=recipes,
    )
    return MemoryProblem(
        trace=trace,
        costs=costs,
        units=tuple(drawn.unit(storage, spans[storage.number]) for storage in chosen),
        places=places,
        live=np.maximum.reduceat(live_kept(trace), places) if len(places) else np.zeros(0, dtype=np.int64),
        elapsed_s=np.concatenate(([0.0], np.cumsum(costs.durations_s)))[np.append(places, trace.length)],
        tick_before=[before[bisect_right(before, place) - 1] for place in range(len(places))],
        tick_after=[after[bisect_right(after, place)] for place in range(len(places))],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A trace and its places, from which units are made."""

    trace: StepTrace
    costs: MemoryCosts
    at: Mapping[int, int]
    index: Mapping[int, int]
    places: NDArray[np.int64]
    ticks: Sequence[int]
    recipes: Mapping[int, tuple[RecomputeRecipe, ...]]

    def unit(self, storage: TraceStorage, span: tuple[int, int]) -> MovableUnit:
        recipes = self.recipes.get(storage.number, ())
        return MovableUnit(
            number=storage.number,
            nbytes=storage.nbytes,
            made=max(recipes[0].ops) if recipes else storage.birth,
            packed=self.at[storage.packs[-1]],
            gone=self.at[span[0]],
            use=self.at[span[1]],
            over=self.at.get(_over(self.trace, storage), len(self.at)),
            to_host_s=self.costs.to_host_s(storage.copy_bytes),
            to_device_s=self.costs.to_device_s(storage.copy_bytes),
            ways=tuple(way for way in map(self._way, recipes) if way.ready < self.at[span[1]]),
            coded_s=self.costs.coded_s(storage.number, storage.copy_bytes),
        )

    def _way(self, recipe: RecomputeRecipe) -> RecomputeWay:
        sources: list[int] = []
        held: list[tuple[int, int]] = []
        for number in recipe.sources:
            source = self.trace.storages[number]
            if number in self.index:
                sources.append(self.index[number])
            elif source.movable and source.keep_end < self.trace.length:
                held.append((self.at[source.keep_end], source.nbytes))
        return RecomputeWay(
            recipe=recipe,
            extra=recipe_peak(self.trace, recipe) - self.trace.storages[recipe.storage].nbytes,
            sources=tuple(sources),
            held=tuple(held),
            ready=self._ready(recipe),
        )

    def _ready(self, recipe: RecomputeRecipe) -> int:
        """The first tick behind those that pack what a recipe reads for the first time, if any is a late one."""
        last = self.trace.storages[recipe.storage].packs[-1]
        sources = [self.trace.storages[number] for number in recipe.sources]
        late = [source.packs[0] for source in sources if source.movable and source.packs[0] > last]
        return next((place for place in self.ticks if self.places[place] >= max(late)), len(self.at)) if late else 0


def _over(trace: StepTrace, storage: TraceStorage) -> int:
    """When the last window of its unpacks is over."""
    ends = [event.end for moment in storage.unpacks if isinstance(event := trace.events[moment], Tick)]
    return max(ends)


def _places(
    trace: StepTrace, chosen: Collection[TraceStorage], spans: Mapping[int, tuple[int, int]]
) -> NDArray[np.int64]:
    """Moments at which something may change. Of ticks with no operation between them, the first."""
    found = {0} if trace.length else set()
    after_tick = False
    for event in trace.events:
        tick = isinstance(event, Tick)
        if tick and not after_tick:
            found.add(event.moment)
        after_tick = tick
    for storage in chosen:
        gone, use = spans[storage.number]
        found |= {storage.packs[-1], gone, use, use + 1, _over(trace, storage)}
    found |= {storage.keep_end for storage in trace.movable}
    return np.array(sorted(moment for moment in found if moment < trace.length), dtype=np.int64)
