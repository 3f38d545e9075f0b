"""How each storage can be made again: from the trace alone, the fewest operations, and longer ways.

A recipe goes back from the packed version of its storage, through storages that nobody packs (the input of an addition,
say), to what is there anyway or can be brought back: packed storages at the version that is read, parameters, buffers.
All operations that changed a storage in place up to the wanted version belong to it:

    packed c ──▶ bn ──▶ y, version 0 ──▶ relu_ ──▶ y, version 1, packed        recipe of y: bn, relu_, from c

Every way to make the storage contains these operations, since what nobody packs must be made again in any case. A
source may itself be recomputed, by an earlier step: that makes chains, and is the plan's business.

Longer recipes go on through packed storages, up to a depth, and drop these on the way. They cost more operations, and
save what a chain would hold from the recompute to the use of its sources.

There is no recipe through an operation that cannot be repeated, that would change a source, or where the recipe would
be longer than `MOST_OPS`. What a batch norm writes to its running statistics is left out.
"""

from collections.abc import Collection, Mapping

from trimaran.costs.memory_costs import MemoryCosts
from trimaran.graph.trace.types import Role, StepTrace, TraceOp, TraceStorage, Value
from trimaran.program.memory import Recipe

MOST_OPS = 64


def find_recipes(
    trace: StepTrace,
    costs: MemoryCosts,
    *,
    banned: Collection[int] = frozenset(),
    depth: int = 0,
    most_ops: int = MOST_OPS,
) -> dict[int, tuple[Recipe, ...]]:
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
    finder = _Finder(trace, banned, most_ops)
    recipes = {}
    for storage in trace.movable:
        found: list[Recipe] = []
        for deep in range(depth + 1):
            recipe = None if storage.number in banned else finder.recipe(storage, deep, costs)
            if recipe is None or (found and recipe.ops == found[-1].ops):
                break
            found.append(recipe)
        if found:
            recipes[storage.number] = tuple(found)
    return recipes


class _Finder:
    """Walks back from a value to sources."""

    def __init__(self, trace: StepTrace, banned: Collection[int], most_ops: int) -> None:
        self.trace = trace
        self.most_ops = most_ops
        self.banned = banned
        self.writers: Mapping[Value, int] = {value: op.moment for op in trace.ops for value in op.writes}
        self._made: dict[int, tuple[set[int], set[int]] | None] = {}

    def recipe(self, storage: TraceStorage, depth: int, costs: MemoryCosts) -> Recipe | None:
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
        return Recipe(
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
            later = self.writers.get((number, version + 1))
            return later is None or later > last_use
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
