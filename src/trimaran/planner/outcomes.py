"""What a change would give: the same plan by the changed costs, and whether another plan would then be chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimaran.errors import InfeasibleError, InputError
from trimaran.planner.altered import changed
from trimaran.planner.candidates import Candidate
from trimaran.planner.changes import Change
from trimaran.planner.problem import Problem, lack_of_memory, reassess
from trimaran.planner.search import search
from trimaran.planner.shapes import unplaced
from trimaran.program import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What becomes of a plan after a change.

    Attributes:
        change: what would be otherwise
        kept: the same plan; None: it is not possible then
        best: what would be chosen; None: nothing can be
        gain: share of its time that the change saves the same plan, negative where it costs; None without `kept`
        gain_interval: of it, where all costs are low, at their median and high: (least, most)
        best_gain: likewise, with the plan that would be chosen; None without `best`
        switches: another strategy would be chosen
        obstacle: why `kept` or `best` is missing
    """

    change: Change
    kept: Candidate | None
    best: Candidate | None
    gain: float | None
    gain_interval: tuple[float, float] | None
    best_gain: float | None
    switches: bool
    obstacle: str = ""


def default_changes(problem: Problem) -> tuple[Change, ...]:
    """What is worth asking of any plan."""
    if problem.cluster.machine is not None:
        return _of_a_machine(problem)
    changes = [
        Change(what="compute", factor=2.0),
        Change(what="load", factor=0.0),
    ]
    if problem.devices > 1:
        changes += [
            Change(what="link", factor=2.0),
            Change(what="latency", factor=0.0),
            Change(what="wire", factor=0.5),
            Change(what="interference", factor=0.0),
            Change(what="devices", value=problem.devices - 1),
        ]
    return (*changes, Change(what="devices", value=_more_devices(problem)))


def _of_a_machine(problem: Problem) -> tuple[Change, ...]:
    """What can be asked of devices that were not measured."""
    changes = [Change(what="compute", factor=2.0), Change(what="memory", factor=0.5)]
    if problem.devices > 1:
        changes += [Change(what="link", factor=2.0), Change(what="wire", factor=0.5)]
        changes.append(Change(what="devices", value=problem.devices // 2))
    return tuple(changes)


def _more_devices(problem: Problem) -> int:
    """The next number of devices among which the batch divides, up to twice as many; else one more."""
    more = range(problem.devices + 1, 2 * problem.devices + 1)
    return next((number for number in more if problem.batch % number == 0), problem.devices + 1)


def outcome_of(change: Change, chosen: Candidate, problem: Problem) -> Outcome:
    """What becomes of a plan after a change.

    Args:
        change: what would be otherwise
        chosen: the plan, scored by the problem as it is
        problem: as it is
    """
    after = changed(problem, change)
    kept, obstacle = _keep(chosen, after)
    try:
        best = search(after).chosen
    except (InfeasibleError, InputError) as error:
        best, obstacle = None, f"{obstacle}; {error.message}" if obstacle else error.message
    spread = () if kept is None else gains(chosen, kept)
    return Outcome(
        change=change,
        kept=kept,
        best=best,
        gain=spread[1] if spread else None,
        gain_interval=(min(spread), max(spread)) if spread else None,
        best_gain=None if best is None else gains(chosen, best)[1],
        switches=best is not None and not is_same(best.strategy, chosen.strategy),
        obstacle=obstacle,
    )


def rank_outcomes(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Outcomes by what could be had, most first."""
    return tuple(sorted(outcomes, key=_rank))


def gains(before: Candidate, after: Candidate, *, per: float = 1.0) -> tuple[float, ...]:
    """Share of the time that is saved, of a step or an epoch, where all costs are low, at their median, and high.

    Args:
        before: the plan
        after: what takes its place
        per: updates of `before` that one step of `after` stands for
    """
    pairs = zip(before.cases, after.cases, strict=True)
    return tuple(1.0 - new / (per * old) if old else 0.0 for old, new in pairs)


def is_same(one: Strategy, other: Strategy) -> bool:
    """Whether two strategies differ at most in where they cut, what they place where, and on which devices."""

    def outline(strategy: Strategy) -> Strategy:
        plain = replace(strategy, boundaries=(), backward_order=(), device_order=())
        return unplaced(plain) if strategy.parts else plain

    return outline(one) == outline(other)


def _keep(chosen: Candidate, after: Problem) -> tuple[Candidate | None, str]:
    needed = chosen.strategy.devices
    if needed > after.devices:
        return None, f"{chosen.strategy.name} needs {needed} devices"
    kept = reassess(chosen, after)
    lack = lack_of_memory(kept.peak_bytes, after)
    return (None, lack) if lack else (kept, "")


def _rank(outcome: Outcome) -> tuple[float, float, str]:
    best = outcome.gain if outcome.best_gain is None else max(outcome.best_gain, outcome.gain or outcome.best_gain)
    return (-(best if best is not None else float("-inf")), -(outcome.gain or 0.0), outcome.change.text)
