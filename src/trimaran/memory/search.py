"""Choose for each storage of a step: keep, offload or recompute.

    min over choices   T(schedule(choice))
    such that          live bytes <= budget at every moment          `schedule` sees to it, or says that it cannot
                       bytes on the host at once <= host_bytes       where there is a cap

T is the time that the simulator gives for the plan. The search:

  1. Below the minimum memory there is no plan: an error names what needs it. With room for all, nothing moves.
  2. The linear program of `bound` gives fractions to offload and recompute. Rounded at several thresholds and repaired
     where they do not fit, these are the starts.
  3. Local search on the simulator from the best starts: flips of one unit, of two of the largest, of all units alike in
     repeated blocks, and of moved units while others make room. A flip stays if the step gets shorter.
  4. The best is changed in a few units at random and improved again, until it is near the bound or the work is done.

How long it searches is a number of evaluations, not a time: the same inputs give the same plan byte for byte. Only a
time limit that is asked for ends it sooner.

Units that are alike: at the same place of repeated blocks.

Two units are alike if they have the same size and recipes of the same operations. In a network of repeated blocks each
group holds one unit of every block, so that flipping a group solves one block and applies it to all.
"""

import random
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from trimaran.graph.trace.types import StepTrace, TraceOp
from trimaran.memory.bound import DEFAULT_SMALLEST_BYTES, BudgetBound, Relaxation, bound_of, relax
from trimaran.memory.minimum import MinimumMemory, below_minimum, minimum_memory, none_found
from trimaran.memory.problem import MemoryProblem, MovableUnit, memory_problem
from trimaran.memory.schedule import KEEP, OFFLOAD, RECOMPUTE, Choice, ChoiceScore, Scores, build_plan
from trimaran.pricing.offload_costs import MemoryCosts
from trimaran.program.memory import KEEP_ALL, MemoryPlan
from trimaran.simulator.memory import LiveBytes, MemoryRun, host_peak, live_bytes, simulate_memory

# ---------------------------------------------------------------------------------------------------------------------
# From fractions to choices that fit: rounding, and repair where a choice is over the budget


# A unit is moved where the linear program moves at least this share of it.
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
) -> tuple[Choice, ChoiceScore]:
    """Move more until it fits, until nothing helps, or until `most` choices were scored.

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


def _best_step(
    scores: Scores, current: Choice, score: ChoiceScore, fixed: Collection[int]
) -> tuple[Choice, ChoiceScore] | None:
    """The flip that takes least time for what it takes off the excess."""
    best: tuple[float, Choice, ChoiceScore] | None = None
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
    scores: Scores, current: Choice, score: ChoiceScore, fixed: Collection[int]
) -> tuple[Choice, ChoiceScore] | None:
    """Where no flip alone helps: offload all units that are there at the worst place at once."""
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
    if scores.host_excess(found):
        # Off the host: cheapest first what saves most copies for what it recomputes.
        for unit in found.away:
            one = units[unit]
            if unit not in fixed and one.ways:
                ranked.append(((one.recompute_s - one.copies_s) / one.nbytes, unit, RECOMPUTE))
        if found.excess == 0:
            ranked += [(0.0, unit, KEEP) for unit in found.away if unit not in fixed]
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
    """Other choices for a recomputed unit that need less memory at the worst place."""
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


def _likeness(problem: MemoryProblem, unit: MovableUnit) -> tuple[object, ...]:
    events = problem.trace.events
    ops = unit.ways[0].recipe.ops if unit.ways else ()
    names = tuple(event.name for moment in ops if isinstance(event := events[moment], TraceOp))
    return unit.nbytes, names, len(unit.ways)


# ---------------------------------------------------------------------------------------------------------------------
# Local search: flips of units, one by one and in groups, as long as the step gets shorter


_LARGEST = 14
_SMALL = 40
_KICKS = 200
_SEED = 0


class Improvement:
    """A choice that gets better.

    Args:
        scores: scores choices
        most: evaluations after which it ends
        enough_s: step time at which it ends [s]
    """

    def __init__(self, scores: Scores, choice: Choice, *, most: int, enough_s: float = 0.0) -> None:
        self.scores = scores
        self.units = scores.problem.units
        self.choice = choice
        self.score: ChoiceScore = scores.score(choice)
        self.most = most
        self.enough_s = enough_s

    def done(self) -> bool:
        """Whether it is good enough, or the evaluations or the time are used up."""
        enough = self.score.excess == 0 and self.score.step_time_s <= self.enough_s
        return enough or self.scores.evaluations >= self.most or self.scores.late()

    def run(self) -> Choice:
        """Search until nothing gets better, or the evaluations are used up."""
        before = None
        while before != self.score and not self.done():
            before = self.score
            for moves in (self._group_flips, self._single_flips, self._undone, self._pair_flips):
                for changed in moves():
                    if self.done():
                        return self.choice
                    self._try(changed)
        return self.choice

    def kicked(self) -> Choice:
        """Search; then change a few units at random and search again, from the best so far, while it may."""
        self.run()
        numbers = random.Random(_SEED)
        for _ in range(_KICKS):
            if self.done():
                break
            units = numbers.sample(range(len(self.units)), min(numbers.randint(2, 4), len(self.units)))
            changed = self._with(*((unit, numbers.choice(self._options(unit))) for unit in units))
            best = self.choice, self.score
            self.choice, self.score = repair(self.scores, changed, frozenset(units))
            if self.score.excess == 0:
                self.run()
            if best[1] <= self.score:
                self.choice, self.score = best
        return self.choice

    def _try(self, changed: Choice) -> None:
        found = self.scores.score(changed)
        if found < self.score:
            self.choice, self.score = changed, found

    def _options(self, unit: int, *, near: bool = False) -> list[int]:
        """Other choices for a unit; where asked, and in large problems, without recipes far from the present one."""
        here, ways = self.choice[unit], len(self.units[unit].ways)
        among = range(ways)
        if near or len(self.units) > _SMALL:
            among = range(max(0, here - RECOMPUTE - 1), min(ways, max(0, here - RECOMPUTE) + 2))
        options = [KEEP, *(RECOMPUTE + way for way in among), OFFLOAD]
        return [option for option in options if option != here]

    def _with(self, *flips: tuple[int, int]) -> Choice:
        changed = list(self.choice)
        for unit, decision in flips:
            changed[unit] = decision
        return tuple(changed)

    def _by_size(self) -> list[int]:
        return sorted(range(len(self.units)), key=lambda unit: (-self.units[unit].nbytes, unit))

    def _single_flips(self) -> Iterator[Choice]:
        for unit in self._by_size():
            for option in self._options(unit):
                yield self._with((unit, option))

    def _pair_flips(self) -> Iterator[Choice]:
        for one, other in combinations(self._by_size()[:_LARGEST], 2):
            for first in self._options(one, near=True):
                for second in self._options(other, near=True):
                    yield self._with((one, first), (other, second))

    def _group_flips(self) -> Iterator[Choice]:
        for members in groups(self.scores.problem):
            for option in (KEEP, RECOMPUTE, OFFLOAD):
                fitting = [unit for unit in members if option != RECOMPUTE or self.units[unit].ways]
                for part in (fitting, fitting[: len(fitting) // 2], fitting[len(fitting) // 2 :]):
                    if part:
                        yield repair(self.scores, self._with(*((unit, option) for unit in part)), frozenset(part))[0]

    def _undone(self) -> Iterator[Choice]:
        """Moved units, the most expensive first, are kept or moved otherwise, and others make room."""
        moved = [unit for unit in range(len(self.units)) if self.choice[unit] != KEEP]
        for unit in sorted(moved, key=lambda one: (-self._price(one), one)):
            for option in self._options(unit):
                if self.choice[unit] not in (KEEP, option):
                    yield repair(self.scores, self._with((unit, option)), frozenset((unit,)))[0]

    def _price(self, unit: int) -> float:
        one, way = self.units[unit], self.choice[unit] - RECOMPUTE
        return one.ways[way].recipe.duration_s if way >= 0 else one.copies_s


POLICY = "trimaran"
# Starts that are improved, and how often the simulator may be asked in all: less often where each answer takes longer.
_STARTS = 3
# A plan that is this close to the lower bound is not improved further.
_ENOUGH = 1.002
_LEAST_EVALUATIONS, _MOST_EVALUATIONS, _WORK = 600, 6000, 1_500_000
# Steps of more than 10,000 places, such as 32 microbatches of a stage, have fewer: minutes for a plan are too many.
_LEAST_WORK = 6_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryOutcome:
    """A planned step.

    Attributes:
        plan: what happens to its storages
        run: its simulation
        live: its live bytes
        problem: the step, with every way that a plan may take
        budget_bytes: peak that it keeps [bytes]
        host_bytes: most that may lie on the host at once [bytes]; None: no limit
        minimum_memory: least memory in which the step can run
        host_peak_bytes: most that lies on the host at once [bytes]
        evaluations: choices that were scored
        is_complete: no time limit ended the search
    """

    plan: MemoryPlan
    run: MemoryRun
    live: LiveBytes
    problem: MemoryProblem
    budget_bytes: int
    host_bytes: int | None
    minimum_memory: MinimumMemory
    host_peak_bytes: int
    evaluations: int
    is_complete: bool = True

    @cached_property
    def bound(self) -> BudgetBound:
        """Lower bound on the time of any plan; two linear programs are solved for it."""
        return bound_of(self.problem, self.budget_bytes, self.host_bytes)

    @property
    def ratio_to_limit(self) -> float:
        """Time of the step, as a multiple of the lower bound."""
        limit_s = self.bound.step_time_s
        return self.run.step_time_s / limit_s if limit_s > 0 else 1.0


def plan_memory(
    trace: StepTrace,
    costs: MemoryCosts,
    *,
    budget_bytes: int,
    smallest_bytes: int = DEFAULT_SMALLEST_BYTES,
    limit_s: float | None = None,
    effort: float = 1.0,
    banned: Collection[int] = frozenset(),
    outside_bytes: int = 0,
) -> MemoryOutcome:
    """Plan the memory of a step.

    A codec never makes the step longer: the best plan without it is taken where that is as fast.

    Args:
        trace: the step
        costs: its durations, the link to the host, and how much may lie there at once
        budget_bytes: peak to keep at every moment [bytes]
        smallest_bytes: smaller storages are kept, unless it does not fit otherwise
        limit_s: time after which it takes the best so far [s]; None: none
        effort: share of the usual number of choices that it scores (0..1]
        banned: storages that are not to be recomputed
        outside_bytes: held by what is no part of the step, for what an error says; the budget is without it [bytes]

    Raises:
        InfeasibleError: no plan fits
    """
    least = minimum_memory(trace)
    if budget_bytes < least.nbytes:
        raise below_minimum(budget_bytes, least, outside_bytes=outside_bytes)
    host_bytes = _host_bytes(trace, costs)
    ways = (costs,) if costs.codec is None else (replace(costs, codec=None), costs)
    found = list[MemoryOutcome]()
    for way in ways:
        deadline_s = float("inf") if limit_s is None else time.monotonic() + limit_s / len(ways)
        for smallest in dict.fromkeys((smallest_bytes, 0)):
            problem = memory_problem(trace, way, smallest_bytes=smallest, banned=banned)
            scores = Scores(problem, budget_bytes, host_bytes, deadline_s)
            choice = _choose(problem, scores, effort)
            if choice is None:
                continue
            plan = build_plan(problem, choice, scores.look(choice)[1], policy=POLICY, budget_bytes=budget_bytes)
            found.append(
                MemoryOutcome(
                    plan=plan if plan.moved else KEEP_ALL,
                    run=simulate_memory(trace, plan, way),
                    live=live_bytes(trace, plan),
                    problem=problem,
                    budget_bytes=budget_bytes,
                    host_bytes=host_bytes,
                    minimum_memory=least,
                    host_peak_bytes=host_peak(trace, plan),
                    evaluations=scores.evaluations,
                    is_complete=not scores.late(),
                )
            )
            break
    if not found:
        raise none_found(budget_bytes, host_bytes, least)
    return replace(min(found, key=lambda one: one.run.step_time_s), problem=found[-1].problem)


def step_within(trace: StepTrace, costs: MemoryCosts, *, budget_bytes: int, enough_s: float) -> float:
    """Step time of the first plan that takes no longer than it may; where none is found, that of the best, or a bound.

    Whether some plan is as fast is known long before the best is: from a bound, or from the first plans that fit.

    Args:
        trace: the step
        costs: as of `plan_memory`
        budget_bytes: peak to keep at every moment [bytes]
        enough_s: that a step may take [s]

    Raises:
        InfeasibleError: no plan fits
    """
    problem = memory_problem(trace, costs, smallest_bytes=DEFAULT_SMALLEST_BYTES)
    scores = Scores(problem, budget_bytes, _host_bytes(trace, costs), float("inf"))
    if budget_bytes >= minimum_memory(trace).nbytes:
        least_s = relax(problem, budget_bytes, host_bytes=scores.host_bytes).step_time_s
        if least_s > enough_s:
            return least_s
        choice = _choose(problem, scores, 1.0, enough_s=enough_s)
        if choice is not None:
            plan = build_plan(problem, choice, scores.look(choice)[1], policy=POLICY, budget_bytes=budget_bytes)
            return simulate_memory(trace, plan, costs).step_time_s
    return plan_memory(trace, costs, budget_bytes=budget_bytes).run.step_time_s


def _host_bytes(trace: StepTrace, costs: MemoryCosts) -> int | None:
    """Room of the host; None: where all fits, how much there is has no part in a plan [bytes]."""
    most = sum(storage.copy_bytes for storage in trace.movable)
    return None if costs.host_bytes is None or costs.host_bytes >= most else costs.host_bytes


def _choose(problem: MemoryProblem, scores: Scores, effort: float, *, enough_s: float = 0.0) -> Choice | None:
    """The best choice that was found, or the first that takes no longer than it may; None where none fits."""
    nothing = (KEEP,) * len(problem.units)
    if scores.score(nothing).excess == 0:
        return nothing
    relaxation = relax(problem, scores.budget_bytes, host_bytes=scores.host_bytes)
    enough_s = max(enough_s, relaxation.step_time_s * _ENOUGH)
    sparing = relax(problem, scores.budget_bytes, host_bytes=scores.host_bytes, sparing=True)
    tried = [*starts(problem, relaxation), *starts(problem, sparing)]
    tried += [everything(problem, recompute=False), everything(problem, recompute=True)]
    if scores.host_bytes is not None:
        recomputed = tuple(RECOMPUTE if one.ways else KEEP for one in problem.units)
        tried += [*(off_the_host(problem, choice) for choice in tried), recomputed]
    places = len(problem.places)
    work = int(effort * min(_MOST_EVALUATIONS, max(min(_LEAST_EVALUATIONS, _LEAST_WORK // places), _WORK // places)))
    repaired = {found[0] for start in tried if (found := repair(scores, start, most=work // len(tried)))[1].excess == 0}
    fitting = sorted(repaired, key=lambda choice: (scores.score(choice), choice))
    if not fitting:
        return None
    share = work // (_STARTS + 1)
    best = fitting[0]
    for start in fitting[:_STARTS]:
        improved = Improvement(scores, start, most=scores.evaluations + share, enough_s=enough_s).run()
        best = min(best, improved, key=scores.score)
    return Improvement(scores, best, most=scores.evaluations + share, enough_s=enough_s).kicked()
