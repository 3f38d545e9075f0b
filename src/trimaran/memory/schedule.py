"""From decisions to a plan: when each storage goes and when it comes back.

Recomputing leaves little choice: a storage is released at its last pack and recomputed at its first use, or at that of
the first storage whose recipe reads it. Storages to offload are copied as soon as they are packed, and then

  1. forward: wherever the live bytes would exceed the budget, those produced first are released, as late as possible,
     so that the operations seldom wait for a copy;
  2. backward, the same seen from the end: wherever they would exceed it, those used last come back later than that,
     so that each comes back as early as memory allows, in the order of use;
  3. a storage is away from what 1. says to what 2. says. What neither needs away is kept: not moved at all;
  4. where that is not enough (lives that are not nested), storages go earlier or come back later, until it is, or
     nothing is left: then the decisions do not fit.

In one pass forward and one back lives are nested: what is produced first is used last. Those of several microbatches
are not (`MemoryProblem.is_nested`), and 2. would choose other storages than 1. does. Then 1. releases what is used last
(Belady's rule), and what it released comes back in the order of use, as early as memory allows.

From a schedule to the steps of a plan, and to its time without building it.

Within a tick: copies to the host start, storages are released, copies back start, then it is recomputed. `step_time`
walks the same steps on the drawn-together axis, and gives what the simulator gives for the plan.
"""

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimaran.base.units import format_bytes, format_seconds
from trimaran.memory.problem import MemoryProblem, MovableUnit
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep, RecomputeRecipe
from trimaran.program.types import Kind
from trimaran.simulator.memory import TO_DEVICE, TO_HOST, MemoryClock

# ---------------------------------------------------------------------------------------------------------------------
# Places of recomputation, and constraints on the units that recipes read


# A choice is a number: recomputing in the second way is RECOMPUTE + 1.
KEEP, OFFLOAD, RECOMPUTE = 0, 1, 2

_ROUNDS = 2


@dataclass(slots=True, kw_only=True)
class Remakes:
    """Constraints on units because of recomputation.

    Attributes:
        deadline: by unit, the place by which it must be back
        remade: by recomputed unit, its place and way
        late: by source that is read after its own last use, who reads it then
        prolonged: (from, to, bytes) of lives that are longer for it
    """

    deadline: list[int]
    remade: dict[int, tuple[int, int]] = field(default_factory=dict)
    late: dict[int, list[int]] = field(default_factory=dict)
    prolonged: list[tuple[int, int, int]] = field(default_factory=list)


def remakes_of(problem: MemoryProblem, choice: Sequence[int]) -> Remakes:
    """Places at which units are recomputed, deadlines of others, and lives that are prolonged.

    A source that is read after its own last use would have to stay. Where what reads it is smaller, that is made
    before the source goes.
    """
    chosen = [unit for unit, decision in enumerate(choice) if decision >= RECOMPUTE]
    # What reads is made after what it reads, so going down each deadline is final when its unit is reached.
    chosen.sort(key=lambda unit: -problem.units[unit].made)
    early: dict[int, int] = {}
    found = _remakes_by(problem, choice, chosen, early)
    for _ in range(_ROUNDS):
        known = len(early)
        for source, readers in found.late.items():
            one = problem.units[source]
            place = problem.tick_before[one.over - 1]
            if sum(problem.units[reader].nbytes for reader in readers) < one.nbytes and place >= one.use:
                fitting = [reader for reader in readers if problem.units[reader].gone < place]
                early.update(dict.fromkeys(fitting, place))
        if len(early) == known:
            break
        found = _remakes_by(problem, choice, chosen, early)
    return found


def _remakes_by(
    problem: MemoryProblem, choice: Sequence[int], chosen: Sequence[int], early: Mapping[int, int]
) -> Remakes:
    units = problem.units
    found = Remakes(deadline=[unit.use for unit in units])
    last_read: dict[int, int] = {}
    for unit in chosen:
        place, number = min(found.deadline[unit], early.get(unit, found.deadline[unit])), choice[unit] - RECOMPUTE
        way = units[unit].ways[number]
        found.remade[unit] = (place, number)
        for source in way.sources:
            if place > units[source].packed:
                found.deadline[source] = min(found.deadline[source], place)
            if place >= units[source].over:
                found.late.setdefault(source, []).append(unit)
                last_read[source] = max(last_read.get(source, -1), place)
        found.prolonged += [(over, place + 1, nbytes) for over, nbytes in way.held if over <= place]
    found.prolonged += [(units[source].over, place + 1, units[source].nbytes) for source, place in last_read.items()]
    return found


_REPAIRS = 400
_NEVER = 2**62  # a place after all others


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSchedule:
    """When units go and come back. Places are indices of `MemoryProblem.places`.

    Attributes:
        away: by offloaded unit, (place of DEL, place of PRE); units that need not go are left out
        remade: by recomputed unit, the place of its recompute, and which of its ways
        first_use: by offloaded unit, the place by which it must be back
        excess: bytes over the budget, summed over places; 0: it fits
        worst: that place
    """

    away: dict[int, tuple[int, int]]
    remade: dict[int, tuple[int, int]]
    first_use: dict[int, int]
    excess: int
    worst: int


def schedule(problem: MemoryProblem, choice: Sequence[int], budget_bytes: int) -> UnitSchedule:
    """Find when units go and come back.

    Args:
        problem: the step
        choice: by unit, KEEP, OFFLOAD, or RECOMPUTE and more
        budget_bytes: peak to keep [bytes]
    """
    remakes = remakes_of(problem, choice)
    level = _level(problem, remakes)
    moved = [
        (unit, max(problem.units[unit].gone, problem.units[unit].packed), remakes.deadline[unit])
        for unit, decision in enumerate(choice)
        if decision == OFFLOAD
    ]
    moved = [(unit, gone, back) for unit, gone, back in moved if gone < back]
    need = (level - budget_bytes).tolist()
    leaves = _forward(problem, moved, need)
    remaining = level.copy()
    if problem.is_nested:
        returns = _backward(problem, moved, need)
        away = {unit: (leaves[unit], returns[unit]) for unit in leaves if returns.get(unit, -1) > leaves[unit]}
        for unit, (gone, back) in away.items():
            remaining[max(gone, problem.units[unit].gone) : back] -= problem.units[unit].nbytes
    else:
        away = _early(problem, moved, leaves, remaining, budget_bytes)
    worst = int(remaining.argmax()) if len(remaining) else 0
    if moved and remaining[worst] > budget_bytes:
        worst = _repair(problem, moved, away, remaining, budget_bytes)
    over = remaining - budget_bytes
    return UnitSchedule(
        away=dict(sorted(away.items())),
        remade=dict(sorted(remakes.remade.items())),
        first_use={unit: back for unit, _, back in moved if unit in away},
        excess=int(over[over > 0].sum()),
        worst=worst,
    )


def _level(problem: MemoryProblem, remakes: Remakes) -> NDArray[np.int64]:
    """Largest live bytes at each place when what is recomputed is away, and what is offloaded is not."""
    remade = remakes.remade
    change = np.zeros(len(problem.places) + 1, dtype=np.int64)
    for unit, (place, way) in remade.items():
        one = problem.units[unit]
        change[min(max(one.gone, one.packed, one.ways[way].ready), place)] -= one.nbytes
        change[place] += one.nbytes
    for start, end, nbytes in remakes.prolonged:
        change[start] += nbytes
        change[min(end, len(problem.places))] -= nbytes
    level: NDArray[np.int64] = problem.live + np.cumsum(change[:-1])
    at_place: dict[int, list[int]] = {}
    for unit in sorted(remade, key=lambda one: problem.units[one].made):
        at_place.setdefault(remade[unit][0], []).append(unit)
    for place, units in at_place.items():
        later = most = 0
        for unit in reversed(units):
            most = max(most, problem.units[unit].ways[remade[unit][1]].extra - later)
            later += problem.units[unit].nbytes
        level[place] += most
    return level


_Moved = Sequence[tuple[int, int, int]]


def _forward(problem: MemoryProblem, moved: _Moved, need: Sequence[int]) -> dict[int, int]:
    """Places from which units must be away, those used last going first."""
    arriving: dict[int, list[tuple[int, int]]] = {}
    for unit, gone, back in moved:
        arriving.setdefault(gone, []).append((unit, back))
    returning: dict[int, int] = {}
    waiting: list[tuple[int, int, int]] = []
    leaves: dict[int, int] = {}
    absent = 0
    for place, needed in enumerate(need):
        for unit, back in arriving.get(place, ()):
            heapq.heappush(waiting, (unit if problem.is_nested else -back, unit, back))
        absent -= returning.pop(place, 0)
        while needed > absent and waiting:
            _, unit, back = heapq.heappop(waiting)
            if back <= place:
                continue
            one_unit = problem.units[unit]
            leaves[unit] = max(problem.tick_before[place], one_unit.packed)
            absent += one_unit.nbytes
            returning[back] = returning.get(back, 0) + one_unit.nbytes
    return leaves


def _backward(problem: MemoryProblem, moved: _Moved, need: Sequence[int]) -> dict[int, int]:
    """Places at which units may be back, those used last coming back last."""
    arriving: dict[int, list[tuple[int, int, int]]] = {}
    for unit, gone, back in moved:
        arriving.setdefault(back - 1, []).append((-back, unit, gone))
    going: dict[int, int] = {}
    waiting: list[tuple[int, int, int]] = []
    returns: dict[int, int] = {}
    absent = 0
    for place in range(len(need) - 1, -1, -1):
        for one in arriving.get(place, ()):
            heapq.heappush(waiting, one)
        absent -= going.pop(place, 0)
        while need[place] > absent and waiting:
            back, unit, gone = heapq.heappop(waiting)
            if gone > place:
                continue
            returns[unit] = min(problem.tick_after[place], -back)
            nbytes = problem.units[unit].nbytes
            absent += nbytes
            going[gone - 1] = going.get(gone - 1, 0) + nbytes
    return returns


def _early(
    problem: MemoryProblem,
    moved: _Moved,
    leaves: Mapping[int, int],
    remaining: NDArray[np.int64],
    budget_bytes: int,
) -> dict[int, tuple[int, int]]:
    """When units that leave are away: each comes back as early as memory allows, in the order of use.

    Args:
        problem: the step
        moved: units with the first place at which they may be away, and the place by which they must be back
        leaves: places from which units must be away
        remaining: live bytes at each place; without those that are away, afterwards [bytes]
        budget_bytes: peak to keep [bytes]
    """
    spans = [(back, unit, max(leaves[unit], problem.units[unit].gone)) for unit, _, back in moved if unit in leaves]
    for back, unit, first in spans:
        remaining[first:back] -= problem.units[unit].nbytes
    away: dict[int, tuple[int, int]] = {}
    for back, unit, first in sorted(spans):
        nbytes = problem.units[unit].nbytes
        full = np.flatnonzero(remaining[first:back] + nbytes > budget_bytes)
        early = min(problem.tick_after[first + int(full[-1])], back) if len(full) else first
        remaining[early:back] += nbytes
        if early > first:
            away[unit] = (leaves[unit], early)
    return away


def _repair(
    problem: MemoryProblem,
    moved: _Moved,
    away: dict[int, tuple[int, int]],
    remaining: NDArray[np.int64],
    budget_bytes: int,
) -> int:
    """Lengthen absences until every place fits, or nothing is left. Returns the worst place."""
    units, gone, back = np.array(moved, dtype=np.int64).reshape(-1, 3).T
    packed = np.array([problem.units[unit].packed for unit, _, _ in moved], dtype=np.int64)
    # A unit that is not away is, at the worst place, away from there to there: never at all.
    start, end = np.array([away.get(unit, (_NEVER, _NEVER)) for unit, _, _ in moved]).reshape(-1, 2).T
    worst = int(remaining.argmax())
    for _ in range(_REPAIRS):
        worst = int(remaining.argmax())
        if remaining[worst] <= budget_bytes:
            return worst
        before, after = (np.where(start == _NEVER, worst, one) for one in (start, end))
        new_start = np.minimum(before, np.maximum(problem.tick_before[worst], packed))
        new_end = np.maximum(after, np.minimum(problem.tick_after[worst], back))
        helps = (np.maximum(new_start, gone) <= worst) & (worst < np.minimum(new_end, back))
        helps &= (worst < before) | (after <= worst)
        if not helps.any():
            return worst
        best = int(np.where(helps, (new_end - new_start) - (after - before), _NEVER).argmin())
        unit, one = int(units[best]), problem.units[int(units[best])]
        if unit in away:
            remaining[max(away[unit][0], one.gone) : away[unit][1]] += one.nbytes
        start[best], end[best] = away[unit] = (int(new_start[best]), int(new_end[best]))
        remaining[max(away[unit][0], one.gone) : away[unit][1]] -= one.nbytes
    return worst


_OFF, _DEL, _PRE, _RE, _USE = range(5)
_KINDS = {_OFF: Kind.OFFLOAD, _DEL: Kind.RELEASE, _PRE: Kind.PREFETCH, _RE: Kind.RECOMPUTE}

_Action = tuple[int, int, int, int]


def _actions(problem: MemoryProblem, found: UnitSchedule) -> list[_Action]:
    """(place, what, rank within, unit), in order."""
    units = problem.units
    actions = []
    for unit, (gone, back) in found.away.items():
        one = units[unit]
        actions.append((one.packed, _OFF, unit, unit))
        actions.append((gone, _DEL, unit, unit))
        actions.append((back, _PRE, found.first_use[unit], unit))
    for unit, (place, way) in found.remade.items():
        released = min(max(units[unit].packed, units[unit].ways[way].ready), place)
        actions.append((released, _DEL, unit, unit))
        actions.append((place, _RE, units[unit].made, unit))
    actions.sort()
    return actions


def coded_units(problem: MemoryProblem, found: UnitSchedule) -> frozenset[int]:
    """Offloaded units whose copies are coded: where that is faster, and no recipe would read what was rounded.

    Args:
        problem: the step
        found: a schedule of it
    """
    codec, units = problem.costs.codec, problem.units
    if codec is None:
        return frozenset()
    read: set[int] = set()
    if not codec.is_exact:
        for unit, (_, way) in found.remade.items():
            read.update(units[unit].ways[way].sources)
    return frozenset(unit for unit in found.away if units[unit].coded_s is not None and unit not in read)


def step_time(problem: MemoryProblem, found: UnitSchedule) -> float:
    """Time of a step under a schedule [s]."""
    units, coded = problem.units, coded_units(problem, found)
    actions = _actions(problem, found)
    actions += [(units[unit].use, _USE, 0, unit) for unit in found.away]
    actions.sort()
    clock = MemoryClock(problem.elapsed_list)
    sent_s: dict[int, float] = {}
    back_s: dict[int, float] = {}
    for place, what, _, unit in actions:
        if what == _RE:
            way = units[unit].ways[found.remade[unit][1]]
            for source in way.sources:
                clock.wait(place, back_s.get(source, 0.0))
            clock.insert(way.recipe.duration_s)
        elif what == _OFF:
            times_s = units[unit].coded_s if unit in coded else None
            _, sent_s[unit] = clock.copy(TO_HOST, place, times_s[0] if times_s else units[unit].to_host_s)
        elif what == _PRE:
            times_s = units[unit].coded_s if unit in coded else None
            _, back_s[unit] = clock.copy(TO_DEVICE, place, times_s[1] if times_s else units[unit].to_device_s)
        else:
            clock.wait(place, back_s[unit] if what == _USE else sent_s.get(unit, 0.0))
    return clock.end_s


def build_plan(
    problem: MemoryProblem, choice: Sequence[int], found: UnitSchedule, *, policy: str, budget_bytes: int | None
) -> MemoryPlan:
    """The plan of a schedule.

    Args:
        problem: the step
        choice: by unit, KEEP, OFFLOAD, or RECOMPUTE and more
        found: the schedule of these decisions
        policy: who decided
        budget_bytes: peak that it keeps [bytes]
    """
    units = problem.units
    steps = tuple(
        MemoryStep(moment=int(problem.places[place]), kind=_KINDS[what], storage=units[unit].number)
        for place, what, _, unit in _actions(problem, found)
    )
    fates = dict.fromkeys(found.away, Decision.OFFLOAD) | dict.fromkeys(found.remade, Decision.RECOMPUTE)
    final = [fates.get(unit, Decision.KEEP) for unit in range(len(units))]
    recipes = {unit: units[unit].ways[way].recipe for unit, (_, way) in found.remade.items()}
    codec = problem.costs.codec
    coded = {} if codec is None else {units[unit].number: codec.name for unit in sorted(coded_units(problem, found))}
    return MemoryPlan(
        policy=policy,
        budget_bytes=budget_bytes,
        decisions={one.number: final[unit] for unit, one in enumerate(units)},
        steps=steps,
        recipes={units[unit].number: recipe for unit, recipe in recipes.items()},
        reasons={
            one.number: _reason(
                one, final[unit], recipes.get(unit), spared=choice[unit] != KEEP, codec=coded.get(one.number, "")
            )
            for unit, one in enumerate(units)
        },
        codecs=coded,
    )


def _reason(unit: MovableUnit, decision: Decision, recipe: RecomputeRecipe | None, *, spared: bool, codec: str) -> str:
    size = format_bytes(unit.nbytes)
    if recipe is not None:
        return f"{size}: {format_seconds(recipe.duration_s)} to recompute"
    if decision == Decision.OFFLOAD:
        if codec:
            return f"{size}: the copies take {format_seconds(unit.copies_s)}, coded by {codec}"
        return f"{size}: the copies take {format_seconds(unit.to_host_s + unit.to_device_s)}"
    return f"{size}: its memory is not needed by others" if spared else f"{size}: it fits"


# ---------------------------------------------------------------------------------------------------------------------
# How good a choice is: bytes over the budgets first, then the time of the step


Choice = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ChoiceScore:
    """Of a choice; smaller is better.

    Attributes:
        excess: bytes over the budget of the device, summed over places, and over that of the host [bytes]; 0: it fits
        step_time_s: time of the step, taken as if the excess fitted [s]
    """

    excess: int
    step_time_s: float


class Scores:
    """Scores choices, each once, and counts.

    Args:
        problem: the step
        budget_bytes: peak on the device [bytes]
        host_bytes: most that may be offloaded at once [bytes]; None: as much as there is
        deadline_s: of `time.monotonic`, when a search should end whatever it has [s]
    """

    def __init__(
        self,
        problem: MemoryProblem,
        budget_bytes: int,
        host_bytes: int | None = None,
        deadline_s: float = float("inf"),
    ) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self.host_bytes = host_bytes
        self.deadline_s = deadline_s
        self.evaluations = 0
        self._known: dict[bytes, tuple[ChoiceScore, UnitSchedule]] = {}

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline_s

    def score(self, choice: Sequence[int]) -> ChoiceScore:
        """Score of a choice."""
        return self.look(choice)[0]

    def look(self, choice: Sequence[int]) -> tuple[ChoiceScore, UnitSchedule]:
        """Score and schedule of a choice."""
        key = bytes(choice)
        known = self._known.get(key)
        if known is None:
            self.evaluations += 1
            found = schedule(self.problem, choice, self.budget_bytes)
            excess = found.excess + self.host_excess(found)
            known = (ChoiceScore(excess=excess, step_time_s=step_time(self.problem, found)), found)
            self._known[key] = known
        return known

    def host_excess(self, found: UnitSchedule) -> int:
        """Bytes on the host beyond its room, where most lie there [bytes]."""
        if self.host_bytes is None:
            return 0
        return max(0, most_on_host(self.problem, found) - self.host_bytes)


def most_on_host(problem: MemoryProblem, found: UnitSchedule) -> int:
    """Most bytes on the host at once [bytes]: of each unit from its OFF to its first use."""
    changes: list[tuple[int, int, int]] = []
    for unit in found.away:
        one = problem.units[unit]
        nbytes = problem.trace.storages[one.number].copy_bytes
        changes += [(one.packed, 1, nbytes), (found.first_use[unit], 0, -nbytes)]
    there = most = 0
    for _, _, nbytes in sorted(changes):
        there += nbytes
        most = max(most, there)
    return most
