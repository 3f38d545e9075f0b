"""Why a plan is what it is, from the same simulations that chose it.

    what binds      the critical path of the step, by class
    what else       every other candidate, how much slower, and whether that is certain
    why not X       the best of a kind, simulated even if it was rejected, class by class beside the plan
    what if         costs or devices otherwise: the same plan again, and the whole search again
    what helps      the known remedies for what binds, tried on the simulator

Nothing here is looked up or told from experience: each figure is a difference of two simulations by the same costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.errors import InfeasibleError, InputError
from trimaran.planner.candidates import Candidate
from trimaran.planner.changes import Change
from trimaran.planner.contrast import Anatomy, Contrast, conclude, dissect, is_believed_slower, ratios
from trimaran.planner.families import Family, imagine
from trimaran.planner.found import Search
from trimaran.planner.outcomes import Outcome, default_changes, outcome_of, rank_outcomes
from trimaran.planner.problem import Problem, assess, is_compiled_known, lack_of_memory
from trimaran.planner.prospects import Prospect, prospects
from trimaran.planner.space import Rejection
from trimaran.program import Strategy

# Causes of a rejection that stand against a strategy, however fast it is.
_OBSTACLES = frozenset({"cut", "batch", "memory"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A candidate beside the chosen one.

    Attributes:
        candidate: the candidate
        slower: its step, or epoch, over that of the chosen one, minus 1
        interval: the least and the most of that over low, median and high costs
        is_certain: slower or faster, as `slower` says, beyond the uncertainty
    """

    candidate: Candidate
    slower: float
    interval: tuple[float, float]
    is_certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a plan.

    Attributes:
        chosen: what its step is made of
        rivals: the other candidates, fastest first
        rejected: what was not priced or does not fit
        contrasts: an answer for each kind that was asked about
        outcomes: an answer for each change, most gain first
        remedies: what the known remedies would save, most first
    """

    chosen: Anatomy
    rivals: tuple[Rival, ...]
    rejected: tuple[Rejection, ...]
    contrasts: tuple[Contrast, ...]
    outcomes: tuple[Outcome, ...]
    remedies: tuple[Prospect, ...]


def explain(
    problem: Problem,
    found: Search,
    *,
    chosen: Candidate | None = None,
    why_not: Sequence[Family] = (),
    changes: Sequence[Change] | None = None,
) -> Explanation:
    """Explain a plan.

    Args:
        problem: that was searched
        found: what the search found
        chosen: the plan; None: what the search chose
        why_not: kinds of strategies to compare with
        changes: what to try otherwise; None: what is worth asking of any plan
    """
    plan = found.chosen if chosen is None else chosen
    anatomy = dissect(plan, problem)
    asked = default_changes(problem) if changes is None else changes
    return Explanation(
        chosen=anatomy,
        rivals=tuple(_rival(candidate, plan) for candidate in found.candidates if candidate.strategy != plan.strategy),
        rejected=found.rejected,
        contrasts=tuple(contrast(family, anatomy, found, problem) for family in why_not),
        outcomes=rank_outcomes([outcome_of(change, plan, problem) for change in asked]),
        remedies=prospects(anatomy, problem),
    )


def contrast(family: Family, chosen: Anatomy, found: Search, problem: Problem) -> Contrast:
    """The best of a kind beside the chosen plan.

    Where the search has none of that kind, those that it rejected are simulated all the same; where it rejected none,
    what the words describe is.

    Args:
        family: the kind
        chosen: the plan
        found: what the search found
        problem: that was searched
    """
    candidates = [candidate for candidate in found.candidates if candidate.strategy in family]
    obstacle = ""
    if not candidates:
        rejected = {
            entry.strategy: entry.reason if entry.cause in _OBSTACLES else ""
            for entry in found.rejected
            if entry.strategy in family
        }
        possible = rejected or dict.fromkeys(imagine(family), "")
        tried = [_attempt(strategy, reason, problem) for strategy, reason in possible.items()]
        usable = [(candidate, reason) for candidate, reason in tried if candidate is not None]
        if not usable:
            reason = tried[0][1]
            return Contrast(
                asked=family.name, other=None, obstacle=reason, conclusion=f"{family.name} is not to be had: {reason}."
            )
        best, obstacle = min(usable, key=lambda entry: (bool(entry[1]), entry[0].objective_s))
    else:
        best = min(candidates, key=lambda candidate: candidate.objective_s)
    if best.strategy == chosen.candidate.strategy:
        sentence = f"{best.strategy.name} is the plan, and the best of {family.name}."
        return Contrast(asked=family.name, other=chosen, obstacle=obstacle, conclusion=sentence)
    other = dissect(best, problem)
    return Contrast(
        asked=family.name, other=other, obstacle=obstacle, conclusion=conclude(chosen, other, obstacle=obstacle)
    )


def _rival(candidate: Candidate, chosen: Candidate) -> Rival:
    cases = ratios(candidate, chosen)
    return Rival(
        candidate=candidate,
        slower=cases[1] - 1.0,
        interval=(min(cases) - 1.0, max(cases) - 1.0),
        is_certain=is_believed_slower(candidate, chosen) or is_believed_slower(chosen, candidate),
    )


def _attempt(strategy: Strategy, reason: str, problem: Problem) -> tuple[Candidate | None, str]:
    """Simulate what a search rejected or never considered; the reason against it."""
    if strategy.devices > problem.devices:
        return None, (
            f"{strategy.name} needs {strategy.devices} devices, there are {problem.devices}; "
            f"--what-if devices={strategy.devices} shows what they would give"
        )
    against = problem.pins.objection(strategy)
    if against and not reason:
        reason = f"{against} is against it"
    if strategy.execution == "compiled" and not is_compiled_known(problem):
        return None, "compiled segments were not measured; --execution compiled measures them"
    try:
        candidate = assess(strategy, problem)
    except (InfeasibleError, InputError) as error:
        return None, reason or error.message
    return candidate, reason or lack_of_memory(candidate.peak_bytes, problem)
