"""From a schedule to the steps of a plan, and to its time without building it.

Within a tick: copies to the host start, storages are let go, copies back start, then it is recomputed. `step_time`
walks the same steps on the drawn-together axis, and gives what the simulator gives for the plan.
"""

from collections.abc import Sequence

from trimaran.planner.memory.problem import MemoryProblem, Unit
from trimaran.planner.memory.remaking import KEEP
from trimaran.planner.memory.schedule import Schedule
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep, Recipe
from trimaran.program.types import Kind
from trimaran.units import format_bytes, format_seconds

_OFF, _DEL, _PRE, _RE, _USE = range(5)
_KINDS = {_OFF: Kind.OFFLOAD, _DEL: Kind.RELEASE, _PRE: Kind.PREFETCH, _RE: Kind.RECOMPUTE}

_Action = tuple[int, int, int, int]


def _actions(problem: MemoryProblem, found: Schedule) -> list[_Action]:
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


def step_time(problem: MemoryProblem, found: Schedule) -> float:
    """Time of a step under a schedule [s]."""
    units, elapsed, away = problem.units, problem.elapsed_list, found.away
    actions = _actions(problem, found)
    actions += [(units[unit].use, _USE, 0, unit) for unit in away]
    actions.sort()
    later_s = to_host_s = to_device_s = 0.0
    sent_s: dict[int, float] = {}
    back_s: dict[int, float] = {}
    for place, what, _, unit in actions:
        now_s = elapsed[place] + later_s
        if what == _RE:
            way = units[unit].ways[found.remade[unit][1]]
            for source in way.sources:
                if back_s.get(source, 0.0) > now_s:
                    now_s = back_s[source]
            later_s = now_s + way.recipe.duration_s - elapsed[place]
        elif what == _OFF:
            to_host_s = max(to_host_s, now_s) + units[unit].to_host_s
            sent_s[unit] = to_host_s
        elif what == _PRE:
            to_device_s = max(to_device_s, now_s) + units[unit].to_device_s
            back_s[unit] = to_device_s
        else:
            wanted_s = back_s[unit] if what == _USE else sent_s.get(unit, 0.0)
            if wanted_s > now_s:
                later_s = wanted_s - elapsed[place]
    return max(elapsed[-1] + later_s, to_host_s, to_device_s)


def build_plan(
    problem: MemoryProblem, choice: Sequence[int], found: Schedule, *, policy: str, budget_bytes: int | None
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
    return MemoryPlan(
        policy=policy,
        budget_bytes=budget_bytes,
        decisions={one.number: final[unit] for unit, one in enumerate(units)},
        steps=steps,
        recipes={units[unit].number: recipe for unit, recipe in recipes.items()},
        reasons={
            one.number: _reason(one, final[unit], recipes.get(unit), spared=choice[unit] != KEEP)
            for unit, one in enumerate(units)
        },
    )


def _reason(unit: Unit, decision: Decision, recipe: Recipe | None, *, spared: bool) -> str:
    size = format_bytes(unit.nbytes)
    if recipe is not None:
        return f"{size}: {format_seconds(recipe.duration_s)} to make again"
    if decision == Decision.OFFLOAD:
        return f"{size}: the copies take {format_seconds(unit.copies_s)}"
    return f"{size}: its memory is not needed by others" if spared else f"{size}: it fits"
