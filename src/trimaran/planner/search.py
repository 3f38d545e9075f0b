"""Find the best strategy that fits.

    minimise    simulated time of a step of strategy s, or of an epoch with its evaluation
    subject to  s.dp · s.pp · s.tp ≤ devices;  s.dp · s.microbatches divides the batch;  stages split at legal places,
                or branches placed;  live bytes of every rank ≤ memory of its device, at every moment of the simulated
                step;  s violates no pin

The space is enumerated (`space.py`), and each strategy gets a lower bound of its time and memory from totals alone
(`QuickBounds`). In the order of these bounds stages are split (`pipeline_stages.py`), and a program of two microbatches
is priced, whose busiest part gives a better one (`bounds.py`); a strategy that then still has the lowest bound is
simulated, with its placement solved first:

    0. on many devices, and under a time limit: replicas of whole networks on all devices in each form; then, of each
       kind of plan, the one with the lowest bound, so that no simple plan beats a search that is cut short;
    1. until no bound is below the best simulated time, or the best is as close to the lowest bound as `Problem.gap`
       allows: now the fastest is known;
    2. of the rest, those that the uncertainty may leave as fast as it and that are simpler than the choice so far, the
       baselines without a plan, and the best of each family by its bound;
    3. more sizes of buckets of the best replicas, where these wait for their gradients; pipelines in more microbatches
       than the space has, where they lack memory in these or are faster so.

Replicas that lack memory in all numbers of microbatches of the space are tried in as few as fit.

Strategies that are not simulated are slower than the fastest, and than the choice or no simpler than it, so the choice
is that of a search that simulates everything, unless its time ran out; the front is that of what was simulated. On more
than `EVERY_NUMBER` devices the first bound assumes equal stages. A strategy that is faster only within the uncertainty
of the costs loses to a simpler one (`choice.py`). Bounds are those of the sizes of buckets that the space has.

A strategy of whole networks that is rejected only for memory is tried again with a memory plan (offload and recompute),
where its step was traced. So is a pipeline whose bound is below the best that fits, in the order of the bounds, until
`MOST_STAGED` were planned: each takes seconds, as a rank plans several microbatches of its stages. GPipe is left out
where 1F1B is tried, which takes as long and has fewer microbatches in flight.

Left out so far: placements of several microbatches at once.

More sizes of buckets for the replicas that wait for their gradients.

Small buckets are sent early and each pays a latency; large buckets pay few latencies, and the last one is sent when the
backward has ended. The space of a search has the default, two smaller sizes and the whole. Where a step waits
for its gradients the best size may lie between: then all powers of two are simulated, for the best strategy of each
compression. A strategy can gain at most its wait, so it is skipped where that is less than its distance to the
fastest.

The order of buckets is that in which their gradients become complete: another one would let a complete bucket wait.
"""

import dataclasses
import heapq
import itertools
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.units import format_bytes, format_count, format_seconds
from trimaran.planner.best_first import best_first
from trimaran.planner.candidates import Candidate, Cases
from trimaran.planner.choice import (
    MODEL_ERROR,
    Option,
    choose,
    family,
    fastest,
    is_plain,
    is_reference,
    may_be_as_fast,
    simplicity,
)
from trimaran.planner.input_pipeline import check_not_cached, fed, fed_there
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.problem import (
    Problem,
    assess_split,
    execution_key,
    lack_of_memory,
    least,
    least_in_memory,
    room_bytes,
    split_for,
)
from trimaran.planner.result import Search, simulated_search, unpinned_references
from trimaran.planner.space import (
    EVERY_NUMBER,
    MICROBATCHES_OF_A_REPLICA,
    MICROBATCHES_PER_STAGE,
    Rejection,
    accumulations,
    bucket_ladder,
    enumerate_strategies,
    is_considered,
    is_unplaced,
    offers_of,
    unfaithfulness,
)
from trimaran.planner.trials import Prospect, Trials
from trimaran.planner.work import SearchWork, work_within
from trimaran.program.layout import even_nodes
from trimaran.program.lowering.schedules import COMPLETING
from trimaran.program.rules.fits_graph import memory_obstacle
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind

# ---------------------------------------------------------------------------------------------------------------------
# A running search: the next strategy to simulate until the fastest is known, and the rest that may still matter


# In a search on many devices, the best of a kind that takes longer than the fastest times this is not simulated.
WORTH_SHOWING = 1.25

# Of a replica: with many devices, a strategy that cannot be best is simulated for show only if it has no more steps.
QUICK_STEPS = 2048


SHARE_OF_A_PLACEMENT = 0.2
"""Share of the work left that solving one placement may take."""

LEAST_PLACING_S = 0.1
"""Work that it gets in any case [s on the reference]."""

OUTLINED_S = 0.0003
"""Work of bounding a strategy from totals [s on the reference, see `work.py`]."""

SPLIT_S = 0.00002
"""Work of splitting a strategy, for each operation of the graph [s, likewise]."""

REFINED_S = 0.000055
"""Work of lowering and pricing a strategy, for each operation of the graph [s, likewise]."""

SIMULATED_S = 0.0001
"""Work of simulating a strategy, for each instruction of its ranks [s, likewise]."""


@dataclasses.dataclass(slots=True)
class Hunt:
    """A search under way: the space of `best_first`.

    Attributes:
        problem: to search
        trials: bounds and simulations
        work: done by it, and its limit
        choice_only: simulate nothing for show
        candidates: found so far
        rejected: so far
        lowest_s: the lowest bound of the remaining strategies when the fastest was known [s]
    """

    problem: Problem
    trials: Trials
    work: SearchWork
    choice_only: bool = False
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    rejected: list[Rejection] = dataclasses.field(default_factory=list)
    lowest_s: float = float("inf")
    is_complete: bool = True

    def refine(self, prospect: Prospect) -> Prospect | None:
        """Split its stages and bound it by its program; None where it is rejected."""
        self.work.spend((SPLIT_S + REFINED_S) * len(self.problem.graph.ops))
        found = self.trials.refine(prospect, self.problem)
        if isinstance(found, Rejection):
            self.rejected.append(found)
            return None
        return found

    def run(self, prospect: Prospect) -> None:
        """Simulate one."""
        self.work.spend((SPLIT_S + REFINED_S) * len(self.problem.graph.ops))
        found = self._placed(prospect) if is_unplaced(prospect.strategy) else self.trials.run(prospect, self.problem)
        if isinstance(found, Rejection):
            self.rejected.append(found)
        else:
            self.work.spend(SIMULATED_S * sum(map(len, found.program.ranks)))
            self.candidates.append(found)

    def _placed(self, prospect: Prospect) -> Candidate | Rejection:
        """A placement solved with little work, and with more where a better one may be as fast as the fastest."""
        problem, trials = self.problem, self.trials
        if self.work.limit_s < float("inf"):
            # A placement takes the work that it gets: no single one may have all that is left.
            left_s = max(LEAST_PLACING_S, SHARE_OF_A_PLACEMENT * self.work.left_s)
            problem = dataclasses.replace(problem, time_limit_s=left_s)
            self.work.spend(left_s)
        if self.candidates:
            found = trials.run(prospect, problem, little_work=True)
            low, median, high = prospect.bound.cases
            if not isinstance(found, Rejection):
                share = trials.bound_shares[found.strategy]
                ends = zip(found.cases, prospect.bound.cases, strict=True)
                low, median, high = (max(share * own, least) for own, least in ends)
                trials.bound_shares[found.strategy] = min(1.0, median / found.objective_s)
            if not may_be_as_fast((low, median, high), fastest(self.candidates).cases):
                return found
        return trials.run(prospect, problem)

    def may_be_best(self, prospect: Prospect) -> bool:
        """Whether the bound of one leaves it as fast as the fastest so far."""
        return not self.candidates or prospect.bound.objective_s <= fastest(self.candidates).objective_s

    @property
    def choice(self) -> Candidate:
        """The choice among what is found so far."""
        return choose(sorted(self.candidates, key=lambda one: (one.objective_s, simplicity(one.strategy))))

    def may_be_chosen(self, strategy: Strategy, least: Cases) -> bool:
        """Whether one may be faster than all so far, by its lower bound, or as fast and simpler than their choice."""
        if not self.candidates or least[1] <= fastest(self.candidates).objective_s:
            return True
        if self.problem.by_devices and least[1] < self.best_s(strategy.devices):
            return True
        simpler = simplicity(strategy) < simplicity(self.choice.strategy)
        return simpler and may_be_as_fast(least, fastest(self.candidates).cases)

    def best_s(self, devices: int) -> float:
        """The least time so far on no more devices [s]; infinite where nothing fits on them."""
        fitting = (one.objective_s for one in self.candidates if one.strategy.devices <= devices)
        return min(fitting, default=float("inf"))

    @property
    def is_over(self) -> bool:
        """Whether its time is over, which is counted in work."""
        return self.work.is_over

    def order(self, node: Prospect) -> tuple[float, tuple[int, ...]]:
        """Sort key: the lowest bound first, of equal ones the simplest."""
        return node.bound.objective_s, simplicity(node.strategy)

    def expand(self, node: Prospect) -> Iterable[Prospect]:
        """Refine an outline, simulate what is refined."""
        if node.is_refined:
            self.run(node)
            return ()
        refined = self.refine(node)
        return () if refined is None else (refined,)

    def is_done(self, bound_s: float) -> bool:
        """Whether no bound is below the best time, or near enough, or the time is over."""
        if not self.candidates:
            return False
        best_s = fastest(self.candidates).objective_s
        if bound_s <= best_s and best_s > bound_s * (1.0 + self.problem.gap) and not self.is_over:
            return False
        # What was left out for lack of time has no bound.
        self.is_complete = self.is_complete and (bound_s > best_s or not self.is_over)
        self.lowest_s = min(self.lowest_s, bound_s, best_s)
        return True


def in_smaller_parts(strategies: Iterable[Strategy], problem: Problem) -> list[Strategy]:
    """Whole networks in the fewest microbatches that fit, where those of the space lack memory.

    The state of replicas is sharded only where no number of microbatches is enough for plain ones.

    Args:
        strategies: of the space
        problem: says what fits
    """
    if problem.pins.microbatches is not None:
        return []
    most: dict[Strategy, int] = {}
    for one in strategies:
        if is_plain(replace(one, microbatches=1, zero=0, units=())):
            form = replace(one, microbatches=1)
            most[form] = max(most.get(form, 1), one.microbatches)
    found: dict[tuple[int, str], Strategy] = {}
    for form in sorted(most, key=lambda one: (one.dp, one.zero)):
        tried = replace(form, microbatches=most[form])
        if (form.dp, form.execution) in found or not _lacks(tried, problem):
            continue
        deeper = _in_more_microbatches(tried, problem)
        fewest = bisect_left(deeper, True, key=lambda one: not _lacks(one, problem))
        if fewest < len(deeper):
            found[form.dp, form.execution] = deeper[fewest]
    return list(found.values())


def _in_more_microbatches(strategy: Strategy, problem: Problem) -> list[Strategy]:
    """The same in more microbatches than it has, the fewest first, where the job may be trained so."""
    deeper = [
        replace(strategy, microbatches=number)
        for number in accumulations(problem.batch // strategy.dp)
        if number > strategy.microbatches
    ]
    return [one for one in deeper if _is_offered(one, problem)]


def _is_offered(strategy: Strategy, problem: Problem) -> bool:
    return is_considered(strategy, problem.graph, batch=problem.batch, pins=problem.pins)


def _lacks(strategy: Strategy, problem: Problem) -> bool:
    return bool(lack_of_memory(least(strategy, problem).peak_bytes, problem, devices=strategy.devices))


def begin(strategies: Sequence[Strategy], hunt: Hunt) -> list[Prospect]:
    """Bound the strategies; on many devices or under a time limit simulate the best simple plans first.

    Args:
        strategies: of the space
        hunt: gets what is simulated and rejected

    Returns:
        Those that remain, with their bounds.
    """
    problem = hunt.problem
    if problem.devices <= EVERY_NUMBER and problem.time_limit_s is None:
        return _outlines(strategies, hunt)
    whole = [one for one in strategies if one.pp == one.tp == 1 and one.dp == problem.devices and not one.parts]
    # These few are simulated even if the time is over: an answer that a plain plan beats is none.
    left = _first_of_kinds(_outlines(whole, hunt, always=True), hunt, each=_form, always=True)
    others = set(whole)
    outlines = _outlines([one for one in strategies if one not in others], hunt)
    return [*left, *_first_of_kinds(outlines, hunt, each=_sort)]


def _first_of_kinds(
    prospects: Sequence[Prospect],
    hunt: Hunt,
    *,
    each: Callable[[Strategy], tuple[object, ...]],
    always: bool = False,
) -> list[Prospect]:
    """Simulate the one with the lowest bound of each kind, simple kinds first, unless it cannot be best.

    Args:
        prospects: of all kinds
        hunt: gets what is simulated and rejected
        each: the kind of a strategy
        always: also when the time is over

    Returns:
        The others.
    """
    first: dict[tuple[object, ...], Prospect] = {}
    for prospect in sorted(prospects, key=hunt.order):
        first.setdefault(each(prospect.strategy), prospect)
    tried: set[int] = set()
    for prospect in sorted(first.values(), key=lambda one: simplicity(one.strategy)):
        if hunt.is_over and hunt.candidates and not always:
            break
        if hunt.may_be_best(prospect):
            tried.add(id(prospect))
            refined: Prospect | None = prospect
            while refined is not None and not refined.is_refined and hunt.may_be_best(refined):
                refined = hunt.refine(refined)
            if refined is not None and hunt.may_be_best(refined):
                hunt.run(refined)
            elif refined is not None:
                tried.discard(id(prospect))
    return [prospect for prospect in prospects if id(prospect) not in tried]


def _form(strategy: Strategy) -> tuple[object, ...]:
    """All that tells replicas of whole networks on all devices apart, but for the size of buckets."""
    return (strategy.zero, strategy.sync, strategy.compression, bool(strategy.shards), strategy.execution)


def fill_up(left: Iterable[Prospect], hunt: Hunt) -> list[Prospect]:
    """Simulate the simplest that may be as fast as the fastest, and what is shown with it; returns the rest."""
    best = fastest(hunt.candidates)
    ruled_out = []
    for outline in sorted(left, key=lambda one: simplicity(one.strategy)):
        prospect: Prospect | None = outline
        while prospect is not None and not prospect.is_refined and _may_matter(prospect, best, hunt):
            prospect = hunt.refine(prospect)
        if prospect is not None and _may_matter(prospect, best, hunt):
            hunt.run(prospect)
        elif prospect is not None:
            ruled_out.append(prospect)
    return ruled_out


def _may_matter(prospect: Prospect, best: Candidate, hunt: Hunt) -> bool:
    """Whether a strategy may be chosen, or is a row that people look for: a baseline, or the best of its family."""
    strategy, many = prospect.strategy, hunt.problem.devices > EVERY_NUMBER
    if not hunt.choice_only and is_reference(strategy, devices=hunt.problem.devices):
        return True
    if hunt.is_over:
        return False
    if is_unplaced(strategy) and many:
        # To solve a placement takes longer than all else, and it is simpler than nothing that may be chosen.
        return prospect.bound.objective_s <= best.objective_s
    if hunt.may_be_chosen(strategy, prospect.bound.cases):
        return True
    if is_unplaced(strategy) or (hunt.choice_only and not _has_buckets(strategy)):
        return False
    steps = strategy.pp * strategy.chunks * strategy.microbatches
    is_shown = prospect.bound.objective_s <= WORTH_SHOWING * best.objective_s and (not many or steps <= QUICK_STEPS)
    return is_shown and all(_kind(one.strategy) != _kind(strategy) for one in hunt.candidates)


def _kind(strategy: Strategy) -> tuple[bool | str, ...]:
    return (*family(strategy), strategy.execution)


def _sort(strategy: Strategy) -> tuple[object, ...]:
    """The kind of a strategy with its order and its exchange, without degrees."""
    order = strategy.schedule if strategy.pp > 1 and not strategy.parts else ""
    return (*_kind(strategy), order, strategy.zero, strategy.sync, strategy.compression)


MOST_REFINED = 3
"""Strategies whose buckets are searched, each with another compression or none."""

_FOLLOWS = frozenset({Kind.CLIP, Kind.UPDATE})


def refine_buckets(hunt: Hunt, ruled_out: Iterable[Strategy] = ()) -> None:
    """Simulate more sizes of buckets of the best replicas, where that may matter; those that fit become candidates.

    Args:
        hunt: whose fastest is known
        ruled_out: strategies that bounds rule out
    """
    if hunt.problem.pins.bucket_bytes is not None:
        return
    known = [*(one.strategy for one in hunt.candidates), *(one.strategy for one in hunt.rejected), *ruled_out]
    tried = {replace(strategy, device_order=()) for strategy in known}
    best = fastest(hunt.candidates) if hunt.candidates else None
    for start in _worth_refining(hunt.candidates):
        for size in bucket_ladder(hunt.problem.graph, execution=start.strategy.execution):
            strategy = replace(start.strategy, bucket_bytes=size)
            # The few sizes of the best are simulated even if the time is over.
            if replace(strategy, device_order=()) in tried or (hunt.is_over and start is not best):
                continue
            found = hunt.trials.try_out(strategy, hunt.problem)
            if not isinstance(found, Rejection):
                hunt.candidates.append(found)


def exposed_s(candidate: Candidate) -> float:
    """How long the first rank waits between its last backward and its update [s].

    Args:
        candidate: of replicas
    """
    kinds = {item.id: item.kind for item in candidate.program.ranks[0]}
    backward_s, update_s = 0.0, float("inf")
    for span in candidate.timeline.select(rank=0):
        kind = kinds[span.instruction]
        if kind in COMPLETING:
            backward_s = max(backward_s, span.end_s)
        elif kind in _FOLLOWS:
            update_s = min(update_s, span.start_s)
    return max(0.0, update_s - backward_s) if update_s < float("inf") else 0.0


def _worth_refining(candidates: list[Candidate]) -> list[Candidate]:
    """The best replicas of each compression whose exposed exchange is more than the distance to the fastest."""
    if not candidates:
        return []
    best_s = fastest(candidates).worth_s
    best: dict[int, Candidate] = {}
    for candidate in sorted(candidates, key=lambda one: one.objective_s):
        if _has_buckets(candidate.strategy):
            best.setdefault(unfaithfulness(candidate.strategy.compression), candidate)
    worth = [
        candidate
        for candidate in best.values()
        if exposed_s(candidate) * candidate.samples_factor
        > max(MODEL_ERROR * candidate.worth_s, candidate.worth_s - best_s)
    ]
    return worth[:MOST_REFINED]


def _has_buckets(strategy: Strategy) -> bool:
    whole = strategy.pp == 1 and strategy.tp == 1 and not strategy.shards
    return strategy.dp > 1 and whole and not strategy.zero and strategy.sync != "p2p"


# ---------------------------------------------------------------------------------------------------------------------
# Pipelines in more microbatches than the space has: where these lack memory, and while they are faster


MOST_DEEPENED = 12
"""Pipelines that are simulated in more microbatches than `MICROBATCHES_PER_STAGE`."""


_LEAST_GAIN = 0.005
"""Share of the time that a pipeline must gain by more microbatches to get more still: each doubling halves the time in
which its stages are idle, so what is left to gain is no more than what the last one gained."""


def deepen_pipelines(hunt: Hunt, strategies: Iterable[Strategy], best_s: Callable[[int], float] | None = None) -> float:
    """Simulate pipelines in more microbatches, those with the lowest bounds first; those that fit become candidates.

    More of them need less memory and leave stages idle for less of the time. A pipeline gets more where it lacks
    memory, or is the fastest so far, and its bound is below what fits on no more devices; on many devices, also its
    time with fewer less what it gained last (see `_LEAST_GAIN`).

    Args:
        hunt: whose fastest is known
        strategies: of the space
        best_s: by a number of devices, the time that one on them must be below [s]; None: of what the hunt has found

    Returns:
        The lowest bound of what was left for lack of tries or time [s]; infinite where nothing was.
    """
    if hunt.problem.pins.microbatches is not None:
        return float("inf")
    best_s = best_s or hunt.best_s
    fitting = {_unsplit(one.strategy) for one in hunt.candidates}
    lacking = {_unsplit(one.strategy) for one in hunt.rejected if one.cause == "memory"}
    waiting: list[tuple[float, int, Prospect]] = []
    number_of = itertools.count()

    def add(strategy: Strategy) -> None:
        for deeper in _in_more_microbatches(strategy, hunt.problem):
            seen = hunt.trials.outline(deeper)
            if isinstance(seen, Prospect):
                heapq.heappush(waiting, (seen.bound.objective_s, next(number_of), seen))
                return

    for one in strategies:
        is_deepest = one.microbatches == _most_of(one) and one.schedule in _DEEPENED
        if one.pp > 1 and is_deepest and (one in lacking or one in fitting):
            add(one)
    for _ in range(MOST_DEEPENED):
        if not waiting or (hunt.is_over and hunt.candidates):
            break
        least_s, _, prospect = heapq.heappop(waiting)
        strategy, before = prospect.strategy, len(hunt.candidates)
        worth_s = (1.0 - _LEAST_GAIN) * best_s(strategy.devices)
        if hunt.problem.devices > EVERY_NUMBER:
            # Of fewer, a simulation takes less than a second, and is shown.
            least_s = max(least_s, _left_to_gain_s(strategy, hunt.candidates))
        if least_s >= worth_s:
            continue
        refined = hunt.refine(prospect)
        if refined is not None and refined.bound.objective_s >= worth_s:
            continue
        if refined is not None:
            hunt.run(refined)
        if len(hunt.candidates) == before or hunt.candidates[-1].objective_s < worth_s:
            add(strategy)
    return min((least_s for least_s, _, _ in waiting), default=float("inf"))


def _left_to_gain_s(strategy: Strategy, candidates: Iterable[Candidate]) -> float:
    """The time of a pipeline with fewer microbatches, less what it gained by its last ones [s]; 0: not known."""
    alike = sorted(
        (one.strategy.microbatches, one.objective_s)
        for one in candidates
        if one.strategy.microbatches < strategy.microbatches
        and _unsplit(replace(one.strategy, microbatches=strategy.microbatches)) == _unsplit(strategy)
    )
    if len(alike) < 2:
        return 0.0
    (_, before_s), (_, now_s) = alike[-2:]
    return now_s - max(0.0, before_s - now_s)


_DEEPENED = frozenset({"1f1b", "interleaved", "zero-bubble"})
"""Schedules whose stages keep no more microbatches at once where there are more."""


def _most_of(strategy: Strategy) -> int:
    """The most microbatches that the space has for the stages of a pipeline."""
    return max(MICROBATCHES_PER_STAGE) * strategy.pp


def _unsplit(strategy: Strategy) -> Strategy:
    return replace(strategy, boundaries=(), device_order=())


def simulate_through(prospect: Prospect, hunt: Hunt) -> None:
    """Simulate a strategy, step by step, or reject it at the first one that says so.

    Args:
        prospect: an outline
        hunt: gets the candidate, or the rejection
    """
    left = [prospect]
    while left:
        left = [better for one in left for better in hunt.expand(one)]


# ---------------------------------------------------------------------------------------------------------------------
# Reasons of a search for leaving strategies out: the bound, the time limit, or that nothing fits


OUT_OF_TIME = "may be faster: the time of the search ended before it was simulated"


def too_slow(prospect: Prospect, chosen: Candidate, best: Candidate) -> Rejection:
    """The rejection of a strategy that was not simulated.

    Args:
        prospect: with its bound
        chosen: the choice
        best: the fastest, which the choice may be within the uncertainty of
    """
    what = "a step" if chosen.epoch_s is None else "an epoch"
    strategy, lower = prospect.strategy, prospect.bound
    faster = chosen if lower.objective_s >= chosen.objective_s else best
    # What is slower than the fastest is chosen only if it may be as fast, and is simpler than the choice.
    may_be_chosen = may_be_as_fast(lower.cases, best.cases) and simplicity(strategy) < simplicity(chosen.strategy)
    slower = lower.objective_s > best.objective_s and (is_unplaced(strategy) or not may_be_chosen)
    if faster is best and not slower:
        return Rejection(strategy=strategy, cause="time", reason=OUT_OF_TIME)
    reason = (
        f"takes at least {format_seconds(lower.objective_s)} {what}, "
        f"{faster.strategy.name} takes {format_seconds(faster.time_s)}"
    )
    return Rejection(strategy=strategy, cause="bound", reason=reason)


NO_STRATEGY = "pin.no-strategy"
"""Code of the error where no strategy keeps the pins, whatever memory there is."""


def nothing_fits(problem: Problem, rejected: Sequence[Rejection]) -> InfeasibleError:
    """The error where nothing fits, with the memory of the nearest strategy.

    Args:
        problem: that was searched
        rejected: all that was considered
    """
    conflict = problem.pins.conflict(problem.devices)
    if conflict or not rejected:
        pins = " ".join(problem.pins.names) or "what was asked"
        why = conflict or _missing(problem) or "its network cannot be spread so, or there are too few devices"
        return InfeasibleError(
            f"{problem.graph.name} has no strategy on {format_count(problem.devices, 'device')} that keeps {pins}: "
            f"{why}",
            code=NO_STRATEGY,
            devices=problem.devices,
        )
    sized = [rejection for rejection in rejected if rejection.peak_bytes]
    # Without a rejection with a size, the simplest strategy is named.
    nearest = min(
        sized, key=lambda rejection: (max(rejection.peak_bytes), simplicity(rejection.strategy)), default=None
    )
    named = nearest or min(rejected, key=lambda rejection: simplicity(rejection.strategy))
    return InfeasibleError(
        f"no strategy fits {problem.graph.name} on {format_count(problem.devices, 'device')}. "
        f"The nearest of {len(rejected)} is {named.strategy.name}: {named.reason}"
        + _without_memory_plan(named)
        + _undivided(problem, rejected, named),
        code="plan.nothing-fits",
        devices=problem.devices,
    )


def _missing(problem: Problem) -> str:
    """What the network or the machine does not have that pinned kinds of parallelism need; empty: not known."""
    pins, devices = problem.pins, problem.devices
    offers = offers_of(problem.graph, devices=devices)
    if "hierarchical" in pins.allow and even_nodes(problem.cluster.hosts[:devices]) < 2:
        return "hierarchical sums are for replicas on several nodes, as many on each"
    if "placement" in pins.allow and not offers.branches:
        return "no two of its operations can run side by side, so there is nothing to place"
    if "sharded" in pins.allow and (pins.dp or devices) not in offers.classifier:
        return f"it has no classifier that {format_count(pins.dp or devices, 'replica')} can share"
    if (pins.tp or 1) > 1 and pins.tp not in offers.tensor:
        return f"it has no layers that {pins.tp} ranks can share"
    if pins.sequence_parallel and (pins.pp or 1) > 1:
        return "sequences are split (sp) where each rank of tp has its share of the whole network, with pp 1"
    if pins.sequence_parallel and pins.tp not in offers.split:
        return f"between its shared layers nothing can be split (sp) along sequences for {pins.tp or 1} ranks"
    return ""


def _without_memory_plan(named: Rejection) -> str:
    """Why there is no memory plan, where memory is the reason of the rejection."""
    strategy = named.strategy
    if named.cause != "memory" or strategy.memory_bytes is not None:
        return ""
    obstacle = memory_obstacle(dataclasses.replace(strategy, memory_bytes=1))
    return f". It has no memory plan, so nothing is offloaded or recomputed: {obstacle}" if obstacle else ""


def _undivided(problem: Problem, rejected: Sequence[Rejection], named: Rejection) -> str:
    """Strategies that only the batch rules out, where the named rejection has another cause."""
    undivided = [one for one in rejected if one.cause == "batch"]
    if not undivided or named.cause == "batch":
        return ""
    first = min(undivided, key=lambda one: (one.strategy.devices < problem.devices, simplicity(one.strategy)))
    return (
        f". {len(undivided)} cannot divide the batch, such as {first.strategy.name}: {first.reason}; "
        "with another batch they may fit"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Whole networks that were rejected only for memory, made to fit by offload and recompute


MOST_STAGED = 4
"""Pipelines for which memory plans are made, one for each stage: each takes seconds. Half as many where something fits
without."""

NOT_STAGED = "may be faster with offload and recompute: stages were planned of a few pipelines with lower bounds"


def may_be_virtualized(rejection: Rejection) -> bool:
    """Whether a strategy was rejected only for memory, and may have a memory budget.

    Args:
        rejection: of the strategy
    """
    strategy = rejection.strategy
    if rejection.cause != "memory" or strategy.memory_bytes is not None or strategy.zero or strategy.shards:
        return False
    plain = strategy.execution == "eager" and strategy.sync == "all-reduce"
    return plain and not memory_obstacle(dataclasses.replace(strategy, memory_bytes=1))


def lacking_memory(problem: Problem, found: Search[Candidate]) -> list[Strategy]:
    """Strategies that may be as fast as the result of a search, or are whole networks, if they had a memory plan.

    Args:
        problem: that was searched
        found: the result without memory plans
    """
    whole, staged = _lacking(problem, found.rejected)
    best_s = fastest(found.candidates).objective_s
    return [*whole, *(split for least_s, _, split in staged if least_s < (1.0 - _WORTH_TRYING) * best_s)]


_WORTH_TRYING = 0.01
"""Share of the time that a memory plan might save, from which on it is tried where something fits without."""


def promising_memory_plans(problem: Problem, found: Search[Candidate]) -> tuple[tuple[Strategy, float], ...]:
    """Whole networks that lack nothing but memory and might be faster with a memory plan than what was found.

    Args:
        problem: that was searched
        found: the result

    Returns:
        Those for which none was made, as `promising` has them.
    """
    if "memory" in problem.pins.forbid:
        return ()
    lacking = dict.fromkeys(one.strategy for one in found.rejected if one.strategy.pp == 1 and may_be_virtualized(one))
    untried = [strategy for strategy in lacking if not _is_squeezed(strategy, problem)]
    return promising(untried, found.chosen.objective_s, problem)


def promising(lacking: Iterable[Strategy], best_s: float, problem: Problem) -> tuple[tuple[Strategy, float], ...]:
    """Whole networks that lack memory with the most that a memory plan might save, as a share of the time.

    Args:
        lacking: the networks
        best_s: of what fits without one [s]
        problem: has their costs

    Returns:
        Those that might save something worth trying; the largest share first, of those that are alike the simplest.
    """
    savings = {one: 1.0 - least(one, problem).objective_s / best_s for one in lacking}
    worth = [one for one in savings if savings[one] >= _WORTH_TRYING]
    return tuple(
        (one, savings[one])
        for one in sorted(worth, key=lambda one: (-round(savings[one] / _WORTH_TRYING), simplicity(one)))
    )


def lacking_replicas(problem: Problem, count: int) -> list[Strategy]:
    """Plain replicas on a number of devices that lack memory, with the numbers of microbatches of the space.

    Args:
        problem: has the batch, the pins and the devices
        count: of devices
    """
    pinned = problem.pins.microbatches
    counts = MICROBATCHES_OF_A_REPLICA if pinned is None else (pinned,)
    replicas = [Strategy(dp=count, microbatches=each) for each in counts]
    return [one for one in replicas if _is_offered(one, problem) and _lacks(one, problem)]


def lacking_pipelines(problem: Problem, rejected: Iterable[Rejection]) -> list[tuple[float, Strategy]]:
    """Pipelines that lack nothing but memory, split, with their lower bounds [s], the lowest first.

    Args:
        problem: that was searched
        rejected: by the search
    """
    return [(least_s, split) for least_s, _, split in _lacking(problem, rejected)[1]]


def with_memory_plans(
    problem: Problem, candidates: Sequence[Candidate], rejected: Sequence[Rejection], lacking: Sequence[Strategy]
) -> tuple[tuple[Candidate, ...], tuple[Rejection, ...]]:
    """What was found, with strategies that lack memory under memory plans; those that were named keep their budget.

    Args:
        problem: with the traces of their steps
        candidates: that fit without
        rejected: the others
        lacking: plain replicas, or pipelines of `lacking_pipelines`; not asked for where a budget was named
    """
    budget_bytes = problem.pins.budget_bytes
    hunt = Hunt(problem=problem, trials=Trials(problem), work=work_within(None), candidates=list(candidates))
    if budget_bytes is not None:
        hunt.rejected += rejected
        return tuple(budgeted(problem, hunt, budget_bytes)), tuple(hunt.rejected)
    hunt.rejected += [Rejection(strategy=one, cause="memory", reason="") for one in lacking]
    virtualized(replace(problem, squeezed=lacking), hunt)
    return tuple(hunt.candidates), (*rejected, *hunt.rejected[len(lacking) :])


def untried_memory_plans(problem: Problem, found: Search[Candidate]) -> tuple[str, ...]:
    """A note on the most promising memory plan of whole networks that was not tried, or nothing.

    Args:
        problem: that was searched
        found: the result
    """
    worth = promising_memory_plans(problem, found)
    if not worth:
        return ()
    nearest, share = worth[0]
    room = min(room_bytes(problem, nearest.devices)) >> 20
    return (
        f"{nearest.name} lacks nothing but memory, and would be at most {share:.0%} faster: "
        f'--strategy "{nearest.name} in {room} MiB" tries to offload and recompute what is too much',
    )


def virtualized(problem: Problem, hunt: "Hunt") -> None:
    """Add candidates that fit with a memory plan and not without.

    Args:
        problem: with the traces of steps
        hunt: has found what fits without; strategies that do not fit with a memory plan either are added to its
            rejections
    """
    if "memory" in problem.pins.forbid or not problem.traces:
        return
    whole, staged = _lacking(problem, hunt.rejected)
    bounds = {plain: least(plain, problem) for plain in whole if _is_squeezed(plain, problem)}
    for plain in sorted(bounds, key=lambda one: (bounds[one].objective_s, simplicity(one))):
        strategy = _in_room(plain, problem)
        # A plan takes time and never saves any.
        if hunt.may_be_chosen(strategy, bounds[plain].cases):
            quickest = least_in_memory(strategy, problem)
            if hunt.may_be_chosen(strategy, quickest.cases):
                _plan_within(strategy, (strategy,), max(bounds[plain].objective_s, quickest.objective_s), problem, hunt)
    left = MOST_STAGED // 2 if hunt.candidates else MOST_STAGED
    for least_s, _, split in staged:
        if least_s >= (1.0 - _WORTH_TRYING) * hunt.best_s(problem.devices):
            hunt.lowest_s = min(hunt.lowest_s, least_s)
            break
        if not _is_squeezed(split, problem):
            continue
        if left == 0 or hunt.is_over:
            hunt.lowest_s = min(hunt.lowest_s, least_s)
            hunt.rejected.append(Rejection(strategy=split, cause="time", reason=NOT_STAGED))
            continue
        left -= 1
        strategy = _in_room(split, problem)
        _plan_within(strategy, _splits(strategy, problem), least_s, problem, hunt)


def _plan_within(
    strategy: Strategy, splits: Iterable[Strategy], least_s: float, problem: Problem, hunt: "Hunt"
) -> None:
    """Add the fastest split that keeps its budget; another memory plan of it may take as little as its bound."""
    found = _under_budget(strategy, splits, problem, hunt)
    hunt.candidates += found
    if found:
        hunt.lowest_s = min(hunt.lowest_s, least_s)


def _is_traced(strategy: Strategy, problem: Problem) -> bool:
    return problem.batch // (strategy.dp * strategy.microbatches) in problem.traces


def _is_squeezed(strategy: Strategy, problem: Problem) -> bool:
    return _is_traced(strategy, problem) and (problem.squeezed is None or strategy in problem.squeezed)


_Bounded = tuple[float, tuple[int, ...], Strategy]
"""A pipeline that is split, by its lower bound without a memory plan, which takes time and never saves any [s]."""


def _lacking(problem: Problem, rejected: Iterable[Rejection]) -> tuple[list[Strategy], list[_Bounded]]:
    """Strategies that lack nothing but memory: whole networks, and pipelines in the order of their bounds."""
    lacking = [one.strategy for one in rejected if may_be_virtualized(one)]
    staged: dict[Strategy, _Bounded] = {}
    for plain in lacking:
        # A rank plans several microbatches: of more than the space has only what is pinned is tried.
        if plain.pp == 1 or (plain.microbatches > _most_of(plain) and problem.pins.microbatches is None):
            continue
        # 1F1B takes as long, and has fewer microbatches in flight.
        if plain.schedule == "gpipe" and replace(plain, schedule="1f1b") in lacking:
            continue
        try:
            split = split_for(dataclasses.replace(plain, boundaries=()), problem)
            staged[split] = (least(split, problem).objective_s, simplicity(split), split)
        except (InfeasibleError, InputError):
            continue  # it is rejected as it is
    return [one for one in lacking if one.pp == 1], sorted(staged.values(), key=lambda one: one[:2])


_HALVINGS = 6


def _splits(plain: Strategy, problem: Problem) -> tuple[Strategy, ...]:
    """A pipeline split for equal times, and so that the fullest rank has the least memory without a plan."""
    by_time = split_for(dataclasses.replace(plain, boundaries=()), problem)
    low, high = 0, max(least(by_time, problem).peak_bytes)
    by_memory = by_time
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        roomier = dataclasses.replace(problem.cluster, memory_bytes=(middle,) * problem.cluster.size)
        try:
            by_memory = split_for(by_time, dataclasses.replace(problem, cluster=roomier), within_memory=True)
            high = middle
        except InfeasibleError:
            low = middle
    return tuple(dict.fromkeys((by_time, by_memory)))


def _in_room(plain: Strategy, problem: Problem) -> Strategy:
    """A strategy with the memory of its devices as its budget."""
    return dataclasses.replace(
        plain, memory_bytes=min(room_bytes(problem, plain.devices)), codec=problem.pins.codec_choice
    )


def _under_budget(strategy: Strategy, splits: Iterable[Strategy], problem: Problem, hunt: "Hunt") -> list[Candidate]:
    """The fastest of the splits of a strategy that keeps its budget; where none does, it is rejected."""
    fitting, reasons = list[Candidate](), list[str]()
    for split in splits:
        try:
            candidate = assess_split(split, problem)
        except InfeasibleError as error:
            reasons.append(error.message)
            continue
        lack = lack_of_memory(candidate.peak_bytes, problem)
        if lack:
            reasons.append(lack)
        else:
            fitting.append(candidate)
    if not fitting:
        hunt.rejected.append(Rejection(strategy=strategy, cause="memory", reason=reasons[0]))
        return []
    return [min(fitting, key=lambda one: (one.objective_s, simplicity(one.strategy)))]


def budgeted(problem: Problem, hunt: "Hunt", budget_bytes: int) -> list[Candidate]:
    """The strategies that were named, under the memory budget of their name.

    Args:
        problem: with the traces of steps of whole networks
        hunt: has found what they are without it; of its rejections for memory only those under the budget are left
        budget_bytes: of each rank, as its name has it; all that the devices have, where that is printed alike [bytes]
    """
    short = [one.strategy for one in hunt.rejected if one.cause == "memory"]
    hunt.rejected = [one for one in hunt.rejected if one.cause != "memory"]
    found: list[Candidate] = []
    for plain in dict.fromkeys([*(one.strategy for one in hunt.candidates), *short]):
        strategy = _in_room(plain, problem)
        if format_bytes(strategy.memory_bytes or 0) != format_bytes(budget_bytes):
            strategy = dataclasses.replace(strategy, memory_bytes=budget_bytes)
        obstacle = memory_obstacle(strategy)
        if obstacle:
            hunt.rejected.append(Rejection(strategy=strategy, cause="memory", reason=obstacle))
            continue
        try:
            splits = _splits(strategy, problem) if strategy.pp > 1 else (split_for(strategy, problem),)
        except InfeasibleError as error:
            hunt.rejected.append(Rejection(strategy=strategy, cause="memory", reason=error.message))
            continue
        found += _under_budget(strategy, splits, problem, hunt)
    return found


def search(problem: Problem, trials: Trials | None = None, *, choice_only: bool = False) -> Search[Candidate]:
    """Find the strategy with the shortest step, or epoch, that fits.

    Args:
        problem: the job, its costs, its devices and its pins
        trials: of the same problem with other pins or traces, so that nothing is simulated twice; None: there are none
        choice_only: nothing but the choice is asked for, so strategies that cannot be chosen are not simulated for show

    Returns:
        The candidates, the chosen one among them. The same problem gives the same result, on any machine: a time limit
        is kept in work (`work.py`).

    Raises:
        InfeasibleError: nothing fits, with the memory of the nearest one
        InputError: a pin names a module that the network does not have
    """
    if problem.room is not None and problem.room.pipeline is not None:
        return fed_there(problem, _search_in_line)
    if problem.room is None:
        check_not_cached(problem.pins)
    found = _search_in_line(problem, trials, choice_only=choice_only and problem.room is None)
    return found if problem.room is None else fed(found, problem, _search_in_line)


def _search_in_line(problem: Problem, trials: Trials | None = None, *, choice_only: bool = False) -> Search[Candidate]:
    """The same, where each rank's own thread loads."""
    begun_s = time.monotonic()
    # A module that is not there is told before anything else.
    problem.pins.rows(problem.graph)
    hunt = Hunt(
        problem=problem,
        trials=trials or Trials(problem),
        work=work_within(problem.time_limit_s),
        choice_only=choice_only,
    )
    strategies, rejected = enumerate_strategies(
        problem.graph,
        devices=problem.devices,
        batch=problem.batch,
        executions=problem.executions,
        pins=problem.pins,
        hosts=problem.cluster.hosts,
    )
    hunt.rejected += rejected
    failed = [strategy for strategy in strategies if execution_key(strategy) in problem.failed]
    hunt.rejected += [
        Rejection(strategy=strategy, cause="failed", reason=problem.failed[execution_key(strategy)])
        for strategy in failed
    ]
    strategies = [strategy for strategy in strategies if execution_key(strategy) not in problem.failed]
    strategies += in_smaller_parts(strategies, problem)
    left = best_first(hunt, begin(strategies, hunt))
    ruled_out = fill_up(left, hunt) if hunt.candidates else []
    refine_buckets(hunt, [prospect.strategy for prospect in ruled_out])
    hunt.lowest_s = min(hunt.lowest_s, deepen_pipelines(hunt, strategies))
    budget_bytes = problem.pins.budget_bytes
    if budget_bytes is None:
        virtualized(problem, hunt)
    else:
        hunt.candidates = budgeted(problem, hunt, budget_bytes)
    if not hunt.candidates:
        raise nothing_fits(problem, hunt.rejected)
    return _conclude(hunt, ruled_out, seconds=time.monotonic() - begun_s)


def _conclude(hunt: Hunt, ruled_out: Sequence[Prospect], *, seconds: float) -> Search[Candidate]:
    problem = hunt.problem
    chosen = choose(sorted(hunt.candidates, key=lambda one: (one.objective_s, simplicity(one.strategy))))
    return simulated_search(
        problem,
        hunt.candidates,
        [*hunt.rejected, *(too_slow(prospect, chosen, fastest(hunt.candidates)) for prospect in ruled_out)],
        chosen=chosen,
        unpinned=unpinned_references(problem, hunt.trials),
        bound_s=_bound(hunt),
        seconds=seconds,
        is_complete=hunt.is_complete,
    )


def _bound(hunt: Hunt) -> float:
    """Lower bound on every strategy that may be chosen [s]: a placement may be better by the gap of its solver."""
    shares = hunt.trials.bound_shares
    bounds = [candidate.objective_s * shares.get(candidate.strategy, 1.0) for candidate in hunt.candidates]
    return min([*bounds, hunt.lowest_s])


def _outlines(strategies: Iterable[Strategy], hunt: Hunt, *, always: bool = False) -> list[Prospect]:
    """The strategies that may fit, by their bounds from totals; the others are rejected, or left when time is over."""
    found = []
    for uncut in strategies:
        if hunt.candidates and hunt.is_over and not always:
            hunt.is_complete, hunt.lowest_s = False, 0.0
            hunt.rejected.append(Rejection(strategy=uncut, cause="time", reason=OUT_OF_TIME))
            continue
        hunt.work.spend(OUTLINED_S)
        seen = hunt.trials.outline(uncut)
        if isinstance(seen, Rejection):
            hunt.rejected.append(seen)
        else:
            found.append(seen)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Cost of each pin: the plan with all of them against the plan without that one


ALL_PINS = "all pins"
"""Name of the price of all of them together, where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPrice:
    """Cost of a pin.

    Attributes:
        pin: as it is written on the command line
        without: the choice without it; None: nothing fits
        price: how much longer the plan takes because of it, as a share of `without`; 0 without one
        to_target: the price counts the samples to the target, of which one of the two plans needs more
    """

    pin: str
    without: Option | None
    price: float
    to_target: bool = False


def prices_of_pins(pins: Pins, plan: Option, choose_with: Callable[[Pins], Option]) -> tuple[PinPrice, ...]:
    """The price of each pin, and of all of them.

    Args:
        pins: of the plan; none: nothing has a price
        plan: the fastest with all of them
        choose_with: the choice of a search with other pins; raises `InfeasibleError` where nothing fits
    """
    freer = [(name, pins.without(name)) for name in pins.names]
    if len(freer) > 1:
        freer.append((ALL_PINS, NO_PINS))
    return tuple(_price(name, plan, choose_with, fewer) for name, fewer in freer)


def _price(name: str, plan: Option, choose_with: Callable[[Pins], Option], fewer: Pins) -> PinPrice:
    try:
        without = choose_with(fewer)
    except InfeasibleError:
        return PinPrice(pin=name, without=None, price=0.0)
    # A hurried search may miss the plan itself, which keeps fewer pins too.
    if without.objective_s > plan.objective_s and not fewer.objection(plan.strategy):
        without = plan
    return PinPrice(
        pin=name,
        without=without,
        price=plan.objective_s / without.objective_s - 1.0,
        to_target=plan.samples_factor != without.samples_factor,
    )


def prices(problem: Problem, found: Search[Candidate], choose: Callable[[Problem], Candidate]) -> tuple[PinPrice, ...]:
    """The price of each pin of a simulated plan.

    Args:
        problem: with pins
        found: the search with all of them
        choose: the choice for a problem with fewer
    """
    hurried = problem.shared_among(len(problem.pins.names) + 1)

    def choose_with(pins: Pins) -> Candidate:
        return choose(replace(hurried, pins=pins))

    return prices_of_pins(problem.pins, found.chosen, choose_with)
