"""Plans by simple rules, so that what executes plans is tested without what searches for them."""

import numpy as np

from trimaran.graph.trace.types import StepTrace, TraceStorage
from trimaran.memory.problem import find_recipes
from trimaran.pricing.offload_costs import MemoryCosts
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep, RecomputeRecipe
from trimaran.program.types import Kind

OFFLOAD, RECOMPUTE, MIXED = "offload", "recompute", "mixed"


def plan_by_rule(trace: StepTrace, rule: str, *, smallest_bytes: int = 1, held: bool = False) -> MemoryPlan:
    """Everything that can be moved is offloaded, or recomputed where it has a recipe, or each in turn.

    What someone outside of autograd holds in the backward is kept, as moving it would free nothing, unless `held`.
    """
    recipes = recipes_of(trace)
    decisions: dict[int, Decision] = {}
    for turn, storage in enumerate(trace.movable):
        early = storage.unpacks[0] < storage.packs[-1] or (storage.outside_end > storage.unpacks[0] and not held)
        if early or storage.nbytes < smallest_bytes:
            continue
        if rule == OFFLOAD or (rule == MIXED and turn % 3 == 0):
            decisions[storage.number] = Decision.OFFLOAD
        elif storage.number in recipes and (rule == RECOMPUTE or turn % 3 == 1):
            decisions[storage.number] = Decision.RECOMPUTE
    return plan_of(trace, decisions, recipes)


def recipes_of(trace: StepTrace) -> dict[int, RecomputeRecipe]:
    costs = MemoryCosts(
        durations_s=np.zeros(trace.length),
        to_host_bytes_per_s=1.0,
        to_device_bytes_per_s=1.0,
        copy_latency_s=0.0,
        source="none",
    )
    return {number: choices[0] for number, choices in find_recipes(trace, costs).items()}


def plan_of(trace: StepTrace, decisions: dict[int, Decision], recipes: dict[int, RecomputeRecipe]) -> MemoryPlan:
    """Away as early as can be, back at the first use, sources before what is made of them."""
    back = {number: trace.storages[number].unpacks[0] for number in decisions}
    made = [number for number, decision in decisions.items() if decision == Decision.RECOMPUTE]
    for _ in made:
        for number in made:
            for source in recipes[number].sources:
                back[source] = min(back.get(source, back[number]), back[number])
    depths: dict[int, int] = {}
    rows = []
    for number, decision in decisions.items():
        storage = trace.storages[number]
        if decision == Decision.OFFLOAD:
            rows.append((storage.packs[-1], 0, 0, Kind.OFFLOAD, number))
            rows.append((min(_next_tick(trace, storage), back[number]), 1, 0, Kind.RELEASE, number))
            rows.append((back[number], 2, 0, Kind.PREFETCH, number))
        else:
            packed = [
                trace.storages[source].packs[0] for source in recipes[number].sources if trace.storages[source].packs
            ]
            away = max([storage.packs[-1], *(moment for moment in packed if moment < back[number])])
            rows.append((away, 1, 0, Kind.RELEASE, number))
            rows.append((back[number], 3, _depth(number, decisions, recipes, depths), Kind.RECOMPUTE, number))
    return MemoryPlan(
        policy="rule",
        budget_bytes=None,
        decisions=decisions,
        steps=tuple(MemoryStep(moment=row[0], kind=row[3], storage=row[4]) for row in sorted(rows)),
        recipes={number: recipes[number] for number in made},
        reasons={},
    )


def _next_tick(trace: StepTrace, storage: TraceStorage) -> int:
    later = [tick.moment for tick in trace.packs if tick.moment > storage.packs[-1]]
    return min(later, default=trace.unpacks[0].moment)


def _depth(
    number: int, decisions: dict[int, Decision], recipes: dict[int, RecomputeRecipe], depths: dict[int, int]
) -> int:
    if decisions.get(number) != Decision.RECOMPUTE:
        return 0
    if number not in depths:
        below = (_depth(source, decisions, recipes, depths) for source in recipes[number].sources)
        depths[number] = 1 + max(below, default=0)
    return depths[number]
