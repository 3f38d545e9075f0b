"""What a memory plan decides about, in the form in which schedules, bounds and searches need it.

**Units** are the storages worth moving: movable, not small, with a time in which they may be away. They are numbered in
the order in which they are packed for the last time. The **axis** is the step's moments, drawn together: between two
places of the axis nothing changes that a plan can change, so that the largest live bytes between them are all that
matters. Places are ticks, ends of lives, and the moments after first uses.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trimaran.costs.memory_costs import MemoryCosts
from trimaran.errors import InputError
from trimaran.graph.trace.types import StepTrace, Tick, TraceStorage
from trimaran.planner.memory.floor import away_span, kept_bytes
from trimaran.planner.memory.recipes import find_recipes
from trimaran.program.memory import Recipe
from trimaran.simulator.memory import recipe_peak

# How far recipes go back beyond what they must: at most so many packed storages in a row are made on the way.
DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to make a unit again.

    Attributes:
        recipe: what is run
        extra: most bytes in the making, beyond its own size [bytes]
        sources: units that it reads
        held: (place, size) of kept storages that are no units and that it reads: where they would end otherwise
        ready: first place at which all that it reads was packed; what it makes cannot be let go before
    """

    recipe: Recipe
    extra: int
    sources: tuple[int, ...]
    held: tuple[tuple[int, int], ...]
    ready: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
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
        ways: to make it again, the one with the fewest operations first; empty: it cannot be
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
    ways: tuple[Way, ...]

    @property
    def recompute_s(self) -> float:
        """Least time to make it again [s]; infinite where it cannot be."""
        return self.ways[0].recipe.duration_s if self.ways else float("inf")

    @property
    def copies_s(self) -> float:
        """Time of both copies [s]."""
        return self.to_host_s + self.to_device_s


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryProblem:
    """A step whose memory is to be planned.

    Attributes:
        trace: the step
        costs: its durations, and the link to the host
        units: storages that may be moved, in the order of their last packs
        places: first moment of each place, ascending
        live: largest live bytes from each place to the next when autograd keeps everything [bytes]
        elapsed_s: time of the operations before each place, and of all [s]
        tick_before: for each place, the last place at or before it that is a tick, -1 where there is none
        tick_after: for each place, the first place after it that is a tick; number of places where there is none
    """

    trace: StepTrace
    costs: MemoryCosts
    units: tuple[Unit, ...]
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
        """Time of the operations when autograd keeps everything [s]."""
        return float(self.elapsed_s[-1])


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
    ticks = [isinstance(trace.events[moment], Tick) for moment in places.tolist()]
    drawn = _Drawn(
        trace=trace,
        costs=costs,
        at=at,
        index=index,
        places=places,
        ticks=[place for place, tick in enumerate(ticks) if tick],
        recipes=recipes,
    )
    return MemoryProblem(
        trace=trace,
        costs=costs,
        units=tuple(drawn.unit(storage, spans[storage.number]) for storage in chosen),
        places=places,
        live=np.maximum.reduceat(kept_bytes(trace), places) if len(places) else np.zeros(0, dtype=np.int64),
        elapsed_s=np.concatenate(([0.0], np.cumsum(costs.durations_s)))[np.append(places, trace.length)],
        tick_before=_before(ticks),
        tick_after=_after(ticks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """What is needed to make units of storages."""

    trace: StepTrace
    costs: MemoryCosts
    at: Mapping[int, int]
    index: Mapping[int, int]
    places: NDArray[np.int64]
    ticks: Sequence[int]
    recipes: Mapping[int, tuple[Recipe, ...]]

    def unit(self, storage: TraceStorage, span: tuple[int, int]) -> Unit:
        recipes = self.recipes.get(storage.number, ())
        return Unit(
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
        )

    def _way(self, recipe: Recipe) -> Way:
        sources: list[int] = []
        held: list[tuple[int, int]] = []
        for number in recipe.sources:
            source = self.trace.storages[number]
            if number in self.index:
                sources.append(self.index[number])
            elif source.movable and source.keep_end < self.trace.length:
                held.append((self.at[source.keep_end], source.nbytes))
        return Way(
            recipe=recipe,
            extra=recipe_peak(self.trace, recipe) - self.trace.storages[recipe.storage].nbytes,
            sources=tuple(sources),
            held=tuple(held),
            ready=self._ready(recipe),
        )

    def _ready(self, recipe: Recipe) -> int:
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


def _before(ticks: Collection[bool]) -> list[int]:
    found, last = [], -1
    for place, tick in enumerate(ticks):
        last = place if tick else last
        found.append(last)
    return found


def _after(ticks: list[bool]) -> list[int]:
    found, following = [0] * len(ticks), len(ticks)
    for place in range(len(ticks) - 1, -1, -1):
        found[place] = following
        following = place if ticks[place] else following
    return found
