"""From fractions to choices that fit: rounding, and repair where a choice is over the budget."""

from collections.abc import Collection, Iterator, Sequence

from trimaran.planner.memory.bound import Relaxation
from trimaran.planner.memory.problem import MemoryProblem
from trimaran.planner.memory.remaking import KEEP, OFFLOAD, RECOMPUTE
from trimaran.planner.memory.scoring import Choice, Score, Scores

# A unit is moved where the linear program moves at least so much of it.
_THRESHOLDS = (0.5, 0.2, 0.01)
_TRIED = 6
_MOST_IN_A_REPAIR = 200


def starts(problem: MemoryProblem, relaxation: Relaxation) -> Iterator[Choice]:
    """Choices to start from, not all of which fit."""
    offloaded, recomputed = relaxation.offloaded.tolist(), relaxation.recomputed.tolist()
    for threshold in _THRESHOLDS:
        choice = []
        for o, r in zip(offloaded, recomputed, strict=True):
            moved = RECOMPUTE if r >= o else OFFLOAD
            choice.append(moved if o + r >= threshold else KEEP)
        yield tuple(choice)


def everything(problem: MemoryProblem, *, recompute: bool) -> Choice:
    """Everything offloaded, or recomputed where that is faster than the copies."""
    return tuple(RECOMPUTE if recompute and one.recompute_s < one.copies_s else OFFLOAD for one in problem.units)


def off_the_host(problem: MemoryProblem, choice: Choice) -> Choice:
    """The same with nothing offloaded that can be recomputed."""
    return tuple(
        RECOMPUTE if decision == OFFLOAD and one.ways else decision
        for decision, one in zip(choice, problem.units, strict=True)
    )


def repair(
    scores: Scores, choice: Sequence[int], fixed: Collection[int] = (), *, most: int = _MOST_IN_A_REPAIR
) -> tuple[Choice, Score]:
    """Move more until it fits, or until nothing helps, or so many choices were scored.

    Args:
        scores: scores choices
        choice: what to start from
        fixed: units to leave as they are
        most: choices to score

    Returns:
        The choice and its score; an excess above 0 says that it does not fit.
    """
    current = tuple(choice)
    best = scores.score(current)
    last = scores.evaluations + most
    while best.excess > 0 and scores.evaluations < last and not scores.late():
        step = _best_step(scores, current, best, fixed) or _all_offloaded(scores, current, best, fixed)
        if step is None:
            break
        current, best = step
    return current, best


def _best_step(scores: Scores, current: Choice, score: Score, fixed: Collection[int]) -> tuple[Choice, Score] | None:
    """The flip that takes least time for what it takes off the excess."""
    best: tuple[float, Choice, Score] | None = None
    for rank, (unit, decision) in enumerate(_candidates(scores, current, fixed)):
        if best is not None and rank >= _TRIED:
            break
        changed = (*current[:unit], decision, *current[unit + 1 :])
        found = scores.score(changed)
        less = score.excess - found.excess
        if less <= 0:
            continue
        rate = (found.step_time_s - score.step_time_s) / less
        if best is None or rate < best[0]:
            best = (rate, changed, found)
    return None if best is None else best[1:]


def _all_offloaded(
    scores: Scores, current: Choice, score: Score, fixed: Collection[int]
) -> tuple[Choice, Score] | None:
    """Where no flip alone helps: what takes part in the worst place is offloaded, all at once."""
    changed = list(current)
    for unit, decision in _candidates(scores, current, fixed):
        if decision == OFFLOAD:
            changed[unit] = OFFLOAD
    found = scores.score(changed)
    return (tuple(changed), found) if found < score else None


def _candidates(scores: Scores, current: Choice, fixed: Collection[int]) -> list[tuple[int, int]]:
    """Flips that may take something off the worst place, cheapest for its bytes first."""
    units = scores.problem.units
    found = scores.look(current)[1]
    worst = found.worst
    ranked: list[tuple[float, int, int]] = []
    for unit, one in enumerate(units):
        decision = current[unit]
        if unit in fixed:
            continue
        if decision >= RECOMPUTE:
            ranked += _instead(scores.problem, unit, *found.remade[unit], worst)
        elif one.gone <= worst < one.use and not _is_away(found.away.get(unit), worst):
            if one.ways:
                ranked.append((one.recompute_s / one.nbytes, unit, RECOMPUTE))
            if decision == KEEP:
                ranked.append((one.copies_s / one.nbytes, unit, OFFLOAD))
    ranked.sort()
    return [(unit, decision) for _, unit, decision in ranked]


def _instead(problem: MemoryProblem, unit: int, place: int, way: int, worst: int) -> list[tuple[float, int, int]]:
    """What may be done with a unit that is recomputed, so that less is there at the worst place."""
    one = problem.units[unit]
    found = []
    if place <= worst < one.over:
        # It is back: for its own use, or too early for another's recipe.
        found.append((one.to_host_s / one.nbytes, unit, OFFLOAD))
        found.append((0.0, unit, KEEP))
    sources = [problem.units[source] for source in one.ways[way].sources]
    freed = sum(one.nbytes for one in sources if place <= worst < one.use or one.over <= worst <= place)
    if freed:
        # Its sources are back early, or stay longer, for its recipe: longer recipes drop them.
        for longer in range(way + 1, len(one.ways)):
            longer_s = one.ways[longer].recipe.duration_s - one.ways[way].recipe.duration_s
            found.append((longer_s / freed, unit, RECOMPUTE + longer))
        found.append((one.copies_s / freed, unit, OFFLOAD))
    return found


def _is_away(span: tuple[int, int] | None, place: int) -> bool:
    return span is not None and span[0] <= place < span[1]
