"""Bounds and simulations of the strategies of a problem, each made once, whatever pins a search has.

outline    a bound from totals alone, for every strategy of the space
refine     stages split, the program priced, a bound by its busiest part; for those that the first leaves
run        branches placed, the program simulated
"""

from dataclasses import dataclass, field, replace

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.planner.bounds import Bound, QuickBounds
from trimaran.planner.candidates import Candidate, LacksMemory
from trimaran.planner.placed_network import PlacedStrategy
from trimaran.planner.problem import (
    Problem,
    arrange,
    assess_split,
    by_busiest_part,
    lack_of_memory,
    place_on,
    quick_bounds,
    split_for,
)
from trimaran.planner.space import Cause, Rejection, is_unplaced
from trimaran.pricing.program import least_peaks
from trimaran.program.rules.fits_graph import check_strategy
from trimaran.program.strategy import Strategy

_Kept = tuple[tuple[str, int], ...]

LITTLE_PLACING_S = 1.0
"""Work that a placement gets first, which is all where its bound rules it out: it is shown [s on the reference]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A strategy that may fit, with its lower bounds.

    Attributes:
        strategy: with boundaries where it is split; a placement may still have none of its parts
        bound: its lower bounds
        is_refined: the bound is that of its program
    """

    strategy: Strategy
    bound: Bound
    is_refined: bool = False


@dataclass(slots=True)
class Trials:
    """Results for the strategies of a problem.

    Attributes:
        problem: the job, its costs and its devices
        alike: trials of the same job and costs at another batch, whose works of microbatches are shared; None: none
        bound_shares: for each placement, a lower bound over its answer [0..1]
    """

    problem: Problem
    alike: "Trials | None" = None
    bound_shares: dict[Strategy, float] = field(default_factory=dict)
    _quick: QuickBounds = field(init=False)
    _refined: dict[tuple[Strategy, _Kept], Prospect | Rejection] = field(default_factory=dict)
    _results: dict[Strategy, Candidate | Rejection] = field(default_factory=dict)
    _placed: dict[tuple[int, int, _Kept, bool], PlacedStrategy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._quick = quick_bounds(self.problem)
        if self.alike is not None:
            self._quick.share(self.alike._quick)

    def outline(self, uncut: Strategy) -> Prospect | Rejection:
        """The bounds of a strategy from totals, or its rejection.

        Args:
            uncut: without boundaries
        """
        try:
            lower = self._quick.of(uncut)
        except InputError as error:
            return Rejection(strategy=uncut, cause="unmeasured", reason=error.message)
        return _unless_too_large(Prospect(strategy=uncut, bound=lower), self.problem)

    def refine(self, prospect: Prospect, problem: Problem) -> Prospect | Rejection:
        """A strategy with its stages split and the bounds of its program, or its rejection.

        Args:
            prospect: an outline
            problem: as `Trials.problem`, with the pins of this search
        """
        if prospect.is_refined:
            return prospect
        key = (prospect.strategy, problem.pins.keep)
        if key not in self._refined:
            self._refined[key] = _refine(prospect, problem)
        return self._refined[key]

    def run(self, prospect: Prospect, problem: Problem, *, little_work: bool = False) -> Candidate | Rejection:
        """The simulation of a strategy, or its rejection.

        Args:
            prospect: the strategy, refined
            problem: as `Trials.problem`, with the pins of this search
            little_work: a placement gets `LITTLE_PLACING_S` of it
        """
        strategy = prospect.strategy
        if is_unplaced(strategy):
            try:
                strategy = self._place(strategy, problem, little_work=little_work)
            except (InfeasibleError, InputError) as error:
                return Rejection(strategy=strategy, cause=_cause_of(error), reason=error.message)
        if strategy not in self._results:
            self._results[strategy] = _run(strategy, problem)
        return self._results[strategy]

    def try_out(self, uncut: Strategy, problem: Problem) -> Candidate | Rejection:
        """The simulation of a strategy from the start, or its rejection."""
        seen = self.outline(uncut)
        if isinstance(seen, Prospect):
            seen = self.refine(seen, problem)
        return seen if isinstance(seen, Rejection) else self.run(seen, problem)

    def _place(self, strategy: Strategy, problem: Problem, *, little_work: bool) -> Strategy:
        """Places are those of one microbatch: replicas of the same one share them, found with as much work."""
        samples = problem.batch // (strategy.dp * strategy.microbatches)
        key = (strategy.pp, samples, problem.pins.keep, little_work)
        if little_work:
            limit_s = LITTLE_PLACING_S if problem.time_limit_s is None else min(LITTLE_PLACING_S, problem.time_limit_s)
            problem = replace(problem, time_limit_s=limit_s)
        if key not in self._placed:
            self._placed[key] = place_on(strategy, problem)
        known = self._placed[key]
        arranged = arrange(strategy, problem)
        placed = replace(arranged, parts=known.strategy.parts, backward_order=known.strategy.backward_order)
        self.bound_shares[placed] = max(known.bound, self.bound_shares.get(placed, 0.0))
        return placed


def _refine(prospect: Prospect, problem: Problem) -> Prospect | Rejection:
    strategy, quick = prospect.strategy, prospect.bound
    if is_unplaced(strategy):
        return replace(prospect, is_refined=True)
    cause: Cause = "split"
    try:
        strategy = split_for(strategy, problem)
        cause = "form"
        check_strategy(problem.graph, strategy, batch=problem.batch)
        cause = "unmeasured"
        if not strategy.parts:
            strategy, quick = _within_memory(strategy, quick, problem)
        known = strategy.pp == 1 and strategy.sync != "p2p"
        seen = _unless_too_large(Prospect(strategy=strategy, bound=quick), problem, at_least=not known)
        if isinstance(seen, Rejection):
            return seen
        return Prospect(strategy=strategy, bound=by_busiest_part(strategy, quick, problem), is_refined=True)
    except (InfeasibleError, InputError) as error:
        return Rejection(strategy=strategy, cause=cause, reason=error.message)


def _within_memory(strategy: Strategy, quick: Bound, problem: Problem) -> tuple[Strategy, Bound]:
    """A strategy with the least that it needs; split again where stages of equal time need too much and others fit."""
    quick = replace(quick, peak_bytes=least_peaks(problem.graph, strategy, problem.table, batch=problem.batch))
    if strategy.pp == 1 or not lack_of_memory(quick.peak_bytes, problem, at_least=True, devices=strategy.devices):
        return strategy, quick
    try:
        smaller = split_for(strategy, problem, within_memory=True)
    except InfeasibleError:
        return strategy, quick
    peak_bytes = least_peaks(problem.graph, smaller, problem.table, batch=problem.batch)
    return smaller, replace(quick, peak_bytes=peak_bytes)


def _unless_too_large(prospect: Prospect, problem: Problem, *, at_least: bool = True) -> Prospect | Rejection:
    peak_bytes = prospect.bound.peak_bytes
    reason = lack_of_memory(peak_bytes, problem, at_least=at_least, devices=prospect.strategy.devices)
    if reason:
        return Rejection(strategy=prospect.strategy, cause="memory", reason=reason, peak_bytes=peak_bytes)
    return prospect


def _run(strategy: Strategy, problem: Problem) -> Candidate | Rejection:
    try:
        try:
            return assess_split(strategy, problem, within_memory=True)
        except LacksMemory:
            if strategy.pp == 1 or strategy.parts:
                raise
            again = split_for(strategy, problem, within_memory=True)
            if again == strategy:
                raise
            return assess_split(again, problem, within_memory=True)
    except LacksMemory as lack:
        reason = lack_of_memory(lack.peak_bytes, problem)
        return Rejection(strategy=strategy, cause="memory", reason=reason, peak_bytes=lack.peak_bytes)
    except InfeasibleError as error:
        return Rejection(strategy=strategy, cause="memory", reason=error.message)
    except InputError as error:
        return Rejection(strategy=strategy, cause="unmeasured", reason=error.message)


def _cause_of(error: InfeasibleError | InputError) -> Cause:
    return "memory" if isinstance(error, InfeasibleError) else "unmeasured"
