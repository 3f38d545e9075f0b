"""What must be away at each place for a budget to hold, and which of these needs decide.

Only some places need a row of their own in a linear program: where the same units may be away at two places, the larger
need says more, and so it does where fewer units can meet it.
"""

import numpy as np
from numpy.typing import NDArray

from trimaran.planner.memory.floor import kept_bytes, needed_bytes
from trimaran.planner.memory.problem import MemoryProblem

_KEY_PLACES = 4


def needs_of(problem: MemoryProblem, budget_bytes: int) -> NDArray[np.int64]:
    """Bytes that must be away at each place, small storages being away wherever they may be.

    Args:
        problem: the step
        budget_bytes: peak to keep [bytes]
    """
    trace = problem.trace
    live = kept_bytes(trace)
    units = np.zeros(trace.length + 1, dtype=np.int64)
    for unit in problem.units:
        units[problem.places[unit.gone]] += unit.nbytes
        units[problem.places[unit.use]] -= unit.nbytes
    # Needed bytes are without all movable storages; those that are units are put back.
    least = np.minimum(live, needed_bytes(trace) + np.cumsum(units[:-1]))
    most: NDArray[np.int64] = np.maximum.reduceat(least, problem.places) - budget_bytes
    return most


def key_places(problem: MemoryProblem, needs: NDArray[np.int64]) -> list[int]:
    """The place where most must be away, and places spread in time over those where at least half of it must.

    Args:
        problem: the step
        needs: by place [bytes], some above 0
    """
    most = int(needs.argmax())
    wide = np.flatnonzero(needs * 2 >= needs[most])
    times_s = np.linspace(problem.elapsed_s[wide[0]], problem.elapsed_s[wide[-1]], _KEY_PLACES + 2)[1:-1]
    spread = wide[np.minimum(np.searchsorted(problem.elapsed_s[wide], times_s), len(wide) - 1)]
    return sorted({most, *(int(place) for place in spread)})


def undominated(problem: MemoryProblem, needs: NDArray[np.int64]) -> list[tuple[int, list[int]]]:
    """Places whose need does not follow from another's, each with the units that may be away there.

    Args:
        problem: the step
        needs: by place [bytes]
    """
    places = np.flatnonzero(needs > 0)
    gone = np.array([unit.gone for unit in problem.units])
    use = np.array([unit.use for unit in problem.units])
    may = (gone[None, :] <= places[:, None]) & (places[:, None] < use[None, :])
    # Of places with the same units, the one with the largest need; then of places with more units, likewise.
    order = np.argsort(-needs[places], kind="stable")
    places, may = places[order], may[order]
    kept: list[int] = []
    for row in range(len(places)):
        if kept and bool((may[kept] <= may[row]).all(axis=1).any()):
            continue
        kept.append(row)
    return [(int(places[row]), np.flatnonzero(may[row]).tolist()) for row in sorted(kept)]
