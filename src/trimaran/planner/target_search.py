"""Which strategies, batches and device counts are simulated on the way to a target.

    for each batch B and count N     data parallelism with the fewest microbatches that fit: the baseline
    then, lowest bound first         hybrid strategies that may beat the best baseline on no more devices
    then, in each batch              pipelines in more microbatches, while they may beat the best on no more devices

A lower bound on any step: the time of one device for all samples at its best microbatch, divided by the devices. Where
this bound, times the updates of the batch, does not beat the baseline by more than the model's error, the search skips
the batch: ties go to the simpler strategy. Every other strategy is bounded by its own totals (`bounds.py`), refined and
simulated in the order of these bounds while they are below the best (`best_first.py`).
"""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.planner.analytical.candidates import AnalyticalCandidate
from trimaran.planner.best_first import best_first
from trimaran.planner.bounds import QuickBounds
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import MODEL_ERROR, Option, largest_peak, simplicity
from trimaran.planner.input_pipeline import check_not_cached
from trimaran.planner.problem import Problem, quick_bounds
from trimaran.planner.search import OUTLINED_S, REFINED_S, SPLIT_S, Hunt, deepen_pipelines, simulate_through
from trimaran.planner.space import Rejection, accumulations, enumerate_strategies
from trimaran.planner.target_estimates import Contender
from trimaran.planner.trials import Prospect, Trials
from trimaran.planner.work import SearchWork, work_within
from trimaran.program.strategy import Strategy

# ---------------------------------------------------------------------------------------------------------------------
# Search space for a target and its result: batches × counts of devices


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The search space: one problem for each batch, on counts of devices.

    Attributes:
        problems: by batch; alike but for it
        counts: of devices, ascending
        weights: by batch, the factor on a step to compare batches: updates to the target, or 1 over the batch
        most_local_batch: samples of a replica in one update; None: any number
        time_limit_s: work on hybrid strategies [s on the reference]; None: no limit
        most_tried: number of hybrid strategies that are bounded by their own programs and simulated
        by_cost: the choice is by the time of all devices together, not by time
    """

    problems: Mapping[int, Problem]
    counts: Sequence[int]
    weights: Mapping[int, float]
    most_local_batch: int | None = None
    time_limit_s: float | None = None
    most_tried: int = 400
    by_cost: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GridSearch:
    """Result of the search.

    Attributes:
        candidates: simulated and fit, by batch; without any, nothing fits
        rejected: strategies that were not simulated or do not fit, by batch
        is_complete: no strategy that may be the best was left out by the time limit or by `most_tried`
        seconds: that it took [s]
    """

    candidates: Mapping[int, tuple[Candidate, ...]]
    rejected: Mapping[int, tuple[Rejection, ...]]
    is_complete: bool
    seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All candidates, for comparison."""
        return tuple(contender_of(one, batch) for batch, found in self.candidates.items() for one in found)


def contender_of(option: Option, batch: int) -> Contender:
    """A strategy as one of those that are compared.

    Args:
        option: simulated, or priced by the analytical model
        batch: samples of one update
    """
    strategy = option.strategy
    low, high = option.interval_s
    return Contender(
        name=strategy.name,
        devices=strategy.devices,
        global_batch=batch,
        replicas=strategy.dp,
        microbatches=strategy.microbatches,
        cases=(low, option.step_time_s, high),
        peak_bytes=largest_peak(option),
        simplicity=option.simplicity if isinstance(option, AnalyticalCandidate) else simplicity(strategy),
        is_hybrid=strategy.pp * strategy.tp * strategy.cp > 1,
        limiter=option.limiter,
        samples_factor=option.samples_factor,
        origin=option,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Which batches and device counts are looked at, where the user does not say


MOST_BATCHES = 12
"""The number of batches that are looked at by default."""


def default_batches(base: int, known: tuple[int, int], measured: Sequence[int], *, devices: int = 1) -> tuple[int, ...]:
    """Powers of two times the job's batch for which a curve has data.

    Where they have no equal shares for all devices, the nearest batches that have are there too.

    Args:
        base: the job's batch
        known: smallest and largest batch of the curve
        measured: the batches of the curve, for a curve that no such product falls into
        devices: that there are

    Example:
        >>> default_batches(64, (100, 600), [100, 600]), default_batches(64, (70, 100), [70, 100])
        ((128, 256, 512), (70, 100))
        >>> default_batches(64, (64, 128), [64, 128], devices=6)
        (64, 66, 126, 128)
    """
    low, high = known
    batch = base
    while batch > low and batch % 2 == 0:
        batch //= 2
    found = []
    while batch <= high:
        if batch >= low:
            found.append(batch)
        batch *= 2
    # If there are too many, the largest ones: small batches need nearly the same amount of training.
    chosen = (found or sorted(measured))[-MOST_BATCHES:]
    shared = [devices * max(1, round(batch / devices)) for batch in chosen if batch >= devices and batch % devices]
    return tuple(sorted({*chosen, *(batch for batch in shared if low <= batch <= high)}))


def device_counts(devices: int) -> tuple[int, ...]:
    """Numbers of devices that are tried.

    Args:
        devices: that there are; of up to 8 each number is tried, of more powers of two and all of them

    Example:
        >>> device_counts(3), device_counts(12)
        ((1, 2, 3), (1, 2, 4, 8, 12))
    """
    if devices <= 8:
        return tuple(range(1, devices + 1))
    counts = [1]
    while 2 * counts[-1] <= devices:
        counts.append(2 * counts[-1])
    return tuple(dict.fromkeys([*counts, devices]))


def search_grid(grid: Grid) -> GridSearch:
    """Find the strategies that may be best at each batch and count.

    Args:
        grid: the search space

    Raises:
        InputError: a strategy is named that keeps samples
    """
    begun_s = time.monotonic()
    check_not_cached(next(iter(grid.problems.values())).pins)
    cells = _Cells(grid, work=work_within(grid.time_limit_s))
    for batch in grid.problems:
        for count in grid.counts:
            cells.try_replicas(batch, count)
    complete = cells.try_others()
    return GridSearch(
        candidates={batch: tuple(hunt.candidates) for batch, hunt in cells.hunts.items() if hunt.candidates},
        rejected={batch: tuple(hunt.rejected) for batch, hunt in cells.hunts.items()},
        is_complete=complete,
        seconds=time.monotonic() - begun_s,
    )


_Node = tuple[int, Prospect]
"""A batch, and a strategy there."""


class _Cells:
    """Batches × counts of devices: the space of `best_first`; a hunt for each batch, as one batch alone has."""

    def __init__(self, grid: Grid, *, work: SearchWork) -> None:
        self.grid = grid
        self.hunts: dict[int, Hunt] = {}
        self._work = work
        self._bounds = {batch: quick_bounds(problem) for batch, problem in grid.problems.items()}
        self._alone_s: dict[int, float] = {}
        for batch, problem in grid.problems.items():
            first = next((hunt.trials for hunt in self.hunts.values()), None)
            self.hunts[batch] = Hunt(problem=problem, trials=Trials(problem, alike=first), work=work)
        self._too_large = float("inf")
        self._cut_short = False
        self._tried = 0

    @property
    def has_found(self) -> bool:
        """Whether something fits at any batch."""
        return any(hunt.candidates for hunt in self.hunts.values())

    def try_replicas(self, batch: int, count: int) -> None:
        """Simulate data parallelism on a number of devices, with the fewest microbatches that fit."""
        problem, rejection = self.grid.problems[batch], None
        if self._is_too_local(batch, count):
            why = f"{count} replicas would have more than {self.grid.most_local_batch} samples each in one update"
            self.hunts[batch].rejected.append(Rejection(strategy=Strategy(dp=count), cause="batch", reason=why))
            return
        local, rest = divmod(batch, count)
        if rest or not local:
            why = f"a global batch of {batch} has no equal shares for {count} devices"
            self.hunts[batch].rejected.append(Rejection(strategy=Strategy(dp=count), cause="batch", reason=why))
            return
        for strategy in _replicas(count, local, problem):
            # A strategy that does not fit at some microbatch does not fit at a larger one either.
            if local // strategy.microbatches >= self._too_large:
                continue
            self._work.spend(OUTLINED_S + (SPLIT_S + REFINED_S) * len(problem.graph.ops))
            result = self.hunts[batch].trials.try_out(strategy, problem)
            if isinstance(result, Candidate):
                self.hunts[batch].candidates.append(result)
                return
            rejection = result
            if result.cause == "memory":
                self._too_large = min(self._too_large, local // strategy.microbatches)
        if rejection is not None:
            self.hunts[batch].rejected.append(rejection)

    def try_others(self) -> bool:
        """Simulate strategies that may beat the replicas; False where the search ended before all of them."""
        left = best_first(self, list(self._prospects()))
        is_complete = not self._cut_short and not any(
            self._may_be_chosen(*self.order(node), node[1].strategy.devices) for node in left
        )
        self._show_hybrid()
        return self._deepen_pipelines() and is_complete

    def order(self, node: _Node) -> tuple[float]:
        """The lowest weighted bound first."""
        batch, prospect = node
        return (self.grid.weights[batch] * prospect.bound.step_time_s,)

    def expand(self, node: _Node) -> Iterable[_Node]:
        """What `Hunt.expand` does, unless something on no more devices is known to be better."""
        batch, prospect = node
        if not self._may_beat(*self.order(node), prospect.strategy.devices):
            return ()
        found = list(self.hunts[batch].expand(prospect))
        # Once each: when its stages are split, or cannot be.
        self._tried += not prospect.is_refined
        return [(batch, better) for better in found]

    def is_done(self, bound_s: float) -> bool:
        """Whether nothing with this bound is better on any number of devices, or the search is over."""
        return not self._may_beat(bound_s, self.grid.counts[0]) or (self._is_over() and self.has_found)

    def _may_beat(self, bound: float, devices: int) -> bool:
        """Whether a weighted lower bound is below the best on no more devices, by more than the model's error."""
        return bound * (1.0 + MODEL_ERROR) < self._best(devices)

    def _is_over(self) -> bool:
        """Whether `most_tried` strategies were tried, or the user's time limit is over."""
        return self._tried >= self.grid.most_tried or self._work.is_over

    def _known(self) -> Iterator[tuple[float, int, Candidate]]:
        """The weighted time of each simulated strategy, its batch, and it."""
        for batch, hunt in self.hunts.items():
            for one in hunt.candidates:
                yield self.grid.weights[batch] * one.worth_s, batch, one

    def _may_be_chosen(self, bound: float, devices: int) -> bool:
        """Whether a strategy with a weighted lower bound may be better than all known ones."""
        by_cost = self.grid.by_cost
        known = [time_s * (one.strategy.devices if by_cost else 1) for time_s, _, one in self._known()]
        return bound * (devices if by_cost else 1) * (1.0 + MODEL_ERROR) < min(known, default=float("inf"))

    def _deepen_pipelines(self) -> bool:
        """Simulate pipelines in more microbatches than the space has; False where one that is left may be chosen."""
        is_complete = True
        for batch, hunt in self.hunts.items():
            if self._is_over() and self.has_found:
                return False
            strategies = self._enumerated(batch, self.grid.counts)[0]
            least_s = deepen_pipelines(hunt, strategies, partial(self._best_s, batch))
            least = self.grid.weights[batch] * least_s
            is_complete = is_complete and not self._may_be_chosen(least, self.grid.counts[0])
        return is_complete

    def _best_s(self, batch: int, devices: int) -> float:
        """The step of a batch that is as good as the best on no more devices, of any batch [s]."""
        return self._best(devices) / self.grid.weights[batch]

    def _show_hybrid(self) -> None:
        """Simulate the hybrid that may be best, with the best replicas, so that the choice can be seen."""
        known = list(self._known())
        if not known or self._is_over() or any(one.strategy.pp * one.strategy.tp > 1 for _, _, one in known):
            return
        _, batch, best = min(known, key=lambda entry: entry[:2])
        prospects = [
            prospect
            for prospect in self._outlines(batch, (best.strategy.devices,))
            if prospect.strategy.pp * prospect.strategy.tp > 1
        ]
        hunt = self.hunts[batch]
        for prospect in sorted(prospects, key=lambda one: (one.bound.step_time_s, simplicity(one.strategy))):
            before = len(hunt.candidates)
            self._tried += 1
            simulate_through(prospect, hunt)
            if len(hunt.candidates) > before or self._is_over():
                return

    def _prospects(self) -> Iterator[_Node]:
        """Strategies of the cells in which something may beat the replicas, with their bounds."""
        for batch in self.grid.problems:
            counts = [count for count in self.grid.counts if self._may_win(batch, count)]
            if counts and self._is_over() and self.has_found:
                self._cut_short = True
            elif counts:
                yield from ((batch, outline) for outline in self._outlines(batch, counts))

    def _outlines(self, batch: int, counts: Sequence[int]) -> Iterator[Prospect]:
        """Strategies on some counts of devices with their bounds; rejections of the others are kept."""
        strategies, rejected = self._enumerated(batch, counts)
        self.hunts[batch].rejected += rejected
        for strategy in strategies:
            self._work.spend(OUTLINED_S)
            seen = self.hunts[batch].trials.outline(strategy)
            if isinstance(seen, Prospect):
                yield seen
            else:
                self.hunts[batch].rejected.append(seen)

    def _enumerated(self, batch: int, counts: Sequence[int]) -> tuple[list[Strategy], list[Rejection]]:
        """Strategies of a batch on some counts of devices, and those that cannot be."""
        problem = self.grid.problems[batch]
        strategies, rejected = enumerate_strategies(
            problem.graph,
            devices=problem.devices,
            batch=batch,
            executions=problem.executions,
            pins=problem.pins,
            hosts=problem.cluster.hosts,
        )
        return (
            [one for one in strategies if one.devices in counts and not self._is_too_local(batch, one.dp)],
            [one for one in rejected if one.strategy.devices in counts],
        )

    def _may_win(self, batch: int, count: int) -> bool:
        """Whether any strategy on a number of devices may beat the known ones on no more of them."""
        if self._best(count) == float("inf"):
            return True
        if batch not in self._alone_s:
            self._bounds[batch].share(next(iter(self._bounds.values())))
            self._alone_s[batch] = _alone_s(self.grid.problems[batch], self._bounds[batch])
        return self._may_beat(self.grid.weights[batch] * self._alone_s[batch] / count, count)

    def _best(self, devices: int) -> float:
        """The least weighted time of a step on no more devices."""
        return min(
            (time_s for time_s, _, one in self._known() if one.strategy.devices <= devices), default=float("inf")
        )

    def _is_too_local(self, batch: int, replicas: int) -> bool:
        most = self.grid.most_local_batch
        return most is not None and batch > most * replicas


def _replicas(count: int, local: int, problem: Problem) -> Iterator[Strategy]:
    """Data parallelism on a number of devices, by rising number of microbatches."""
    pinned = problem.pins.microbatches
    for microbatches in accumulations(local) if pinned is None else (pinned,):
        for execution in problem.executions:
            strategy = Strategy(dp=count, microbatches=microbatches, execution=execution)
            if local % microbatches == 0 and not problem.pins.objection(strategy):
                yield strategy


def _alone_s(problem: Problem, bounds: QuickBounds) -> float:
    """Lower bound on the time of one device for the samples of an update, at its best microbatch [s]."""
    found = []
    for execution in problem.executions:
        for size in sorted({size for key in problem.table.wholes.values() for size in key}):
            if problem.batch % size == 0:
                strategy = Strategy(microbatches=problem.batch // size, execution=execution)
                try:
                    found.append(bounds.of(strategy).step_time_s)
                except InputError:
                    continue
    return min(found, default=0.0)


def nothing_fits_at_any(rejected: Mapping[int, Sequence[Rejection]]) -> InfeasibleError:
    """The error where nothing fits at any batch.

    Args:
        rejected: all that was considered, by batch
    """
    reasons = [one.reason for found in rejected.values() for one in found if one.cause == "memory"] or [
        one.reason for found in rejected.values() for one in found
    ]
    first = reasons[0] if reasons else "no strategy respects the limits"
    return InfeasibleError(
        f"nothing fits at batches {', '.join(map(str, rejected))}: {first}; "
        "allow more devices, smaller batches, a larger local batch, or take a pin away",
        code="plan.no-batch-fits",
    )
