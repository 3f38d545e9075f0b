"""From decisions to a plan: when each storage goes and when it comes back.

Recomputing has little choice: a storage is let go at its last pack and made again at its first use, or at that of the
first storage whose recipe reads it. What is offloaded is copied as soon as it is packed, and then

  1. forward: wherever the live bytes would exceed the budget, those produced first are let go, as late as possible,
     so that the operations seldom wait for a copy;
  2. backward, the same seen from the end: wherever they would exceed it, those used last come back later than that,
     so that each comes back as early as memory allows, in the order of use;
  3. a storage is away from what 1. says to what 2. says. What neither needs away is kept: not moved at all;
  4. where that is not enough (lives that are not nested), storages go earlier or come back later, until it is, or
     nothing is left: then the decisions do not fit.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.planner.memory.problem import MemoryProblem
from trimaran.planner.memory.remaking import OFFLOAD, Remakes, remakes_of

_REPAIRS = 400
_NEVER = 2**62  # a place after all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
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


def schedule(problem: MemoryProblem, choice: Sequence[int], budget_bytes: int) -> Schedule:
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
    returns = _backward(problem, moved, need)
    away = {unit: (leaves[unit], returns[unit]) for unit in leaves if returns.get(unit, -1) > leaves[unit]}
    remaining = level.copy()
    for unit, (gone, back) in away.items():
        remaining[max(gone, problem.units[unit].gone) : back] -= problem.units[unit].nbytes
    worst = int(remaining.argmax()) if len(remaining) else 0
    if moved and remaining[worst] > budget_bytes:
        worst = _repair(problem, moved, away, remaining, budget_bytes)
    over = remaining - budget_bytes
    return Schedule(
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
    """Where units must be away from, those produced first going first."""
    arriving: dict[int, list[tuple[int, int]]] = {}
    for unit, gone, back in moved:
        arriving.setdefault(gone, []).append((unit, back))
    returning: dict[int, int] = {}
    waiting: list[tuple[int, int]] = []
    leaves: dict[int, int] = {}
    absent = 0
    for place, needed in enumerate(need):
        for one in arriving.get(place, ()):
            heapq.heappush(waiting, one)
        absent -= returning.pop(place, 0)
        while needed > absent and waiting:
            unit, back = heapq.heappop(waiting)
            if back <= place:
                continue
            one_unit = problem.units[unit]
            leaves[unit] = max(problem.tick_before[place], one_unit.packed)
            absent += one_unit.nbytes
            returning[back] = returning.get(back, 0) + one_unit.nbytes
    return leaves


def _backward(problem: MemoryProblem, moved: _Moved, need: Sequence[int]) -> dict[int, int]:
    """Where units may be back, those used last coming back last."""
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
