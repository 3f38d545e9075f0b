"""Units that are alike: at the same place of repeated blocks.

Two units are alike if they have the same size and recipes of the same operations. In a network of repeated blocks each
group holds one unit of every block, so that flipping a group solves one block and applies it to all.
"""

from trimaran.graph.trace.types import TraceOp
from trimaran.planner.memory.problem import MemoryProblem, Unit


def groups(problem: MemoryProblem) -> list[list[int]]:
    """Groups of at least two units, the largest in bytes first.

    Args:
        problem: the step
    """
    found: dict[tuple[object, ...], list[int]] = {}
    for number, unit in enumerate(problem.units):
        found.setdefault(_likeness(problem, unit), []).append(number)
    several = [members for members in found.values() if len(members) > 1]
    return sorted(several, key=lambda members: (-sum(problem.units[unit].nbytes for unit in members), members))


def _likeness(problem: MemoryProblem, unit: Unit) -> tuple[object, ...]:
    events = problem.trace.events
    ops = unit.ways[0].recipe.ops if unit.ways else ()
    names = tuple(event.name for moment in ops if isinstance(event := events[moment], TraceOp))
    return unit.nbytes, names, len(unit.ways)
