"""Choose for each storage of a step: keep, offload or recompute.

    min over choices   T(schedule(choice))
    such that          live bytes <= budget at every moment          `schedule` sees to it, or says that it cannot
                       bytes on the host at once <= host_bytes       where there is a cap

T is what the simulator says of the plan. The way there:

  1. Below the floor there is no plan: refused, with what holds the floor. At the peak of keeping all, nothing moves.
  2. The linear program of `bound` says what to offload and recompute, in fractions. Rounded at several thresholds and
     repaired where they do not fit, these are the starts.
  3. Local search on the simulator from the best starts: flips of one unit, of two of the largest, of all units alike in
     repeated blocks, and of what is moved while others make place. A flip stays if the step gets shorter.
  4. The best is changed in a few units at random and improved again, until it is near the bound or the work is done.

How long it searches is a number of evaluations, not a time: the same inputs give the same plan byte for byte.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

from trimaran.costs.memory_costs import MemoryCosts
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory.bound import DEFAULT_SMALLEST_BYTES, Bound, bound_of, relax
from trimaran.planner.memory.building import build_plan
from trimaran.planner.memory.floor import Floor, floor
from trimaran.planner.memory.improving import Improvement
from trimaran.planner.memory.problem import MemoryProblem, memory_problem
from trimaran.planner.memory.refusing import below_floor, none_found
from trimaran.planner.memory.remaking import KEEP, RECOMPUTE
from trimaran.planner.memory.rounding import everything, off_the_host, repair, starts
from trimaran.planner.memory.scoring import Choice, Scores
from trimaran.program.memory import KEEP_ALL, MemoryPlan
from trimaran.simulator.memory import LiveBytes, MemoryRun, live_bytes, simulate_memory

POLICY = "trimaran"
# Starts that are improved, and how often the simulator may be asked in all: less often where each answer takes longer.
_STARTS = 3
# A plan so close to what no plan can beat is not improved further.
_ENOUGH = 1.002
_LEAST_EVALUATIONS, _MOST_EVALUATIONS, _WORK = 600, 6000, 1_500_000


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryOutcome:
    """A planned step.

    Attributes:
        plan: what happens to its storages
        run: its simulation
        live: its live bytes
        bound: what no plan can beat
        floor: least memory in which the step can run
        evaluations: choices that were scored
    """

    plan: MemoryPlan
    run: MemoryRun
    live: LiveBytes
    bound: Bound
    floor: Floor
    evaluations: int

    @property
    def ratio_to_limit(self) -> float:
        """Time of the step, as a multiple of what no plan can beat."""
        limit_s = self.bound.step_time_s
        return self.run.step_time_s / limit_s if limit_s > 0 else 1.0


def plan_memory(
    trace: StepTrace,
    costs: MemoryCosts,
    *,
    budget_bytes: int,
    host_bytes: int | None = None,
    smallest_bytes: int = DEFAULT_SMALLEST_BYTES,
    limit_s: float = 30.0,
    effort: float = 1.0,
    banned: Collection[int] = frozenset(),
) -> MemoryOutcome:
    """Plan the memory of a step.

    Args:
        trace: the step
        costs: its durations, and the link to the host
        budget_bytes: peak to keep at every moment [bytes]
        host_bytes: most that may be offloaded at once [bytes]; None: as much as there is
        smallest_bytes: smaller storages are kept, unless it does not fit otherwise
        limit_s: time after which it takes the best so far [s]
        effort: share of the usual number of choices that it scores (0..1]
        banned: storages that are not to be recomputed

    Raises:
        InfeasibleError: no plan fits
    """
    least = floor(trace)
    if budget_bytes < least.nbytes:
        raise below_floor(trace, budget_bytes, least)
    deadline_s = time.monotonic() + limit_s
    for smallest in dict.fromkeys((smallest_bytes, 0)):
        problem = memory_problem(trace, costs, smallest_bytes=smallest, banned=banned)
        scores = Scores(problem, budget_bytes, host_bytes, deadline_s)
        choice = _choose(problem, scores, effort)
        if choice is None:
            continue
        plan = build_plan(problem, choice, scores.look(choice)[1], policy=POLICY, budget_bytes=budget_bytes)
        return MemoryOutcome(
            plan=plan if plan.moved else KEEP_ALL,
            run=simulate_memory(trace, plan, costs),
            live=live_bytes(trace, plan),
            bound=bound_of(problem, budget_bytes),
            floor=least,
            evaluations=scores.evaluations,
        )
    raise none_found(budget_bytes, host_bytes, least)


def _choose(problem: MemoryProblem, scores: Scores, effort: float) -> Choice | None:
    """The best choice that was found; None where none fits."""
    nothing = (KEEP,) * len(problem.units)
    if scores.score(nothing).excess == 0:
        return nothing
    relaxation = relax(problem, scores.budget_bytes)
    enough_s = relaxation.step_time_s * _ENOUGH
    sparing = relax(problem, scores.budget_bytes, sparing=True)
    tried = [*starts(problem, relaxation), *starts(problem, sparing)]
    tried += [everything(problem, recompute=False), everything(problem, recompute=True)]
    if scores.host_bytes is not None:
        recomputed = tuple(RECOMPUTE if one.ways else KEEP for one in problem.units)
        tried += [*(off_the_host(problem, choice) for choice in tried), recomputed]
    work = int(effort * min(_MOST_EVALUATIONS, max(_LEAST_EVALUATIONS, _WORK // len(problem.places))))
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
