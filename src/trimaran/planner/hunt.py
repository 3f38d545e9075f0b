"""A search under way: what is simulated next, until the fastest is known, and what of the rest may still matter."""

import dataclasses
import heapq
import itertools
import time
from collections.abc import Iterable, Sequence

from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import family, fastest, is_reference, largest_peak, may_be_as_fast, simplicity
from trimaran.planner.problem import Problem
from trimaran.planner.shapes import EVERY_NUMBER
from trimaran.planner.space import Rejection
from trimaran.planner.trials import Prospect, Trials
from trimaran.program import Strategy

# In a search on many devices, the best of a kind that takes longer than the fastest times this is not simulated.
WORTH_SHOWING = 1.25

# Of a replica: with many devices, a strategy that cannot be best is simulated for show only if it has no more steps.
QUICK_STEPS = 2048


@dataclasses.dataclass(slots=True)
class Hunt:
    """A search under way.

    Attributes:
        problem: what is searched
        trials: bounds and simulations
        until_s: when its time is over, by `time.monotonic` [s]
        candidates: found so far
        rejected: so far
        lowest_s: the least bound of what was left when the fastest was known [s]
    """

    problem: Problem
    trials: Trials
    until_s: float
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    rejected: list[Rejection] = dataclasses.field(default_factory=list)
    lowest_s: float = float("inf")
    is_complete: bool = True

    def refine(self, prospect: Prospect) -> Prospect | None:
        """Bound one with its own stages; None where something stands against it."""
        found = self.trials.refine(prospect, self.problem)
        if isinstance(found, Rejection):
            self.rejected.append(found)
            return None
        return found

    def run(self, prospect: Prospect) -> None:
        """Simulate one."""
        found = self.trials.run(prospect, self.problem)
        if isinstance(found, Rejection):
            self.rejected.append(found)
        else:
            self.candidates.append(found)

    @property
    def is_over(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self.until_s


def order_of(prospect: Prospect) -> tuple[float, tuple[int, ...]]:
    """Sort key: the lowest bound first, of equal ones the simplest."""
    return prospect.bound.objective_s, simplicity(prospect.strategy)


def find_fastest(prospects: Sequence[Prospect], hunt: Hunt) -> list[Prospect]:
    """Refine and simulate the one with the lowest bound, until none is below the best time; returns what is left."""
    numbers = itertools.count(len(prospects))
    waiting = [(*order_of(prospect), number, prospect) for number, prospect in enumerate(prospects)]
    heapq.heapify(waiting)
    while waiting:
        bound_s, *_, prospect = heapq.heappop(waiting)
        if hunt.candidates:
            best_s = fastest(hunt.candidates).objective_s
            if bound_s > best_s or best_s <= bound_s * (1.0 + hunt.problem.gap) or hunt.is_over:
                hunt.is_complete = bound_s > best_s or not hunt.is_over
                hunt.lowest_s = min(bound_s, best_s)
                return sorted([prospect, *(entry[-1] for entry in waiting)], key=order_of)
        if prospect.is_refined:
            hunt.run(prospect)
            continue
        refined = hunt.refine(prospect)
        if refined is not None:
            heapq.heappush(waiting, (*order_of(refined), next(numbers), refined))
    return []


def fill_up(left: Iterable[Prospect], hunt: Hunt) -> list[Prospect]:
    """Simulate what the fastest does not rule out; returns the rest."""
    best = fastest(hunt.candidates)
    ruled_out = []
    for outline in left:
        needed = is_reference(outline.strategy, devices=hunt.problem.devices)
        if not needed and (hunt.is_over or not _may_matter(outline, best, hunt)):
            ruled_out.append(outline)
            continue
        prospect = hunt.refine(outline)
        if prospect is None:
            continue
        if needed or _may_matter(prospect, best, hunt):
            hunt.run(prospect)
        else:
            ruled_out.append(prospect)
    return ruled_out


def _may_matter(prospect: Prospect, best: Candidate, hunt: Hunt) -> bool:
    candidates = hunt.candidates
    if may_be_as_fast(prospect.bound.cases, best.cases):
        return True
    is_new = all(_kind(one.strategy) != _kind(prospect.strategy) for one in candidates)
    if hunt.problem.devices > EVERY_NUMBER:
        steps = prospect.strategy.pp * prospect.strategy.chunks * prospect.strategy.microbatches
        return is_new and steps <= QUICK_STEPS and prospect.bound.objective_s <= WORTH_SHOWING * best.objective_s
    return is_new or not any(_beats(one, prospect) for one in candidates)


def _beats(candidate: Candidate, prospect: Prospect) -> bool:
    """Whether a candidate needs less time, and no more memory and devices, than another one can possibly do with."""
    lower = prospect.bound
    lighter = largest_peak(candidate) <= max(lower.peak_bytes, default=0)
    return candidate.worth_s < lower.step_time_s and lighter and candidate.strategy.devices <= prospect.strategy.devices


def _kind(strategy: Strategy) -> tuple[bool | str, ...]:
    return (*family(strategy), strategy.execution)
