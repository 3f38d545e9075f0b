"""Estimates for a target: a strategy at a batch, with time and cost of a training by it.

A step and a curve together: C = T · S · E with its interval.

The time of a step is as uncertain as its costs, the training as the runs behind the curve. The two errors are
independent, so their distances from the median add in quadrature, in logarithms, upwards and downwards each:

    ln(high / median)² = ln(T_high / T)² + ln(E_high / E)²

Where more devices stop helping: the count beyond which a doubling saves less than a stated share of the time.

time  │╲
      │ ╲                     saved by a doubling = 1 - t(2N) / t(N)
      │   ╲__                 stop at the first N where that is below the share
      │      ‾‾──____──  ←    here more devices cost and save little
      └───────────────── devices
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from trimaran.base.units import format_duration, format_figure
from trimaran.planner.candidates import Cases
from trimaran.planner.choice import COARSE, MODEL_ERROR, front_of, simpler_option
from trimaran.pricing.failures import LongRun

if TYPE_CHECKING:
    from trimaran.convergence.types import Need


Goal = Literal["throughput", "time", "cost"]
"""Objectives: samples a second; the time to the target; the cost of that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A strategy at one global batch, as far as its step goes.

    Attributes:
        name: of the strategy
        devices: that take part
        global_batch: samples of one update
        replicas: that share them
        microbatches: of a replica
        cases: time of a step with all costs low, at their median, and high [s]
        peak_bytes: of the fullest rank [bytes]
        simplicity: sort key; of equally good ones the smallest is taken
        is_hybrid: a replica is spread over several devices
        limiter: its bottleneck
        samples_factor: as in `planner.candidates.Candidate`
        origin: the simulated or priced candidate
    """

    name: str
    devices: int
    global_batch: int
    replicas: int
    microbatches: int
    cases: Cases
    peak_bytes: int
    simplicity: tuple[int, ...]
    is_hybrid: bool = False
    limiter: str = ""
    samples_factor: float = 1.0
    origin: Any = field(default=None, compare=False, repr=False)

    @property
    def compared(self) -> Cases:
        """The cases by which plans are compared, as `Candidate.cases`: exchanges are equally unknown in all [s]."""
        cases: Cases = self.cases if self.origin is None else self.origin.cases
        return cases

    @property
    def step_time_s(self) -> float:
        """Of one update [s]."""
        return self.cases[1]

    @property
    def samples_per_s(self) -> float:
        """Throughput [samples/s]."""
        return self.global_batch / self.step_time_s

    @property
    def local_batch(self) -> int:
        """Samples of one replica in one update."""
        return self.global_batch // self.replicas

    @property
    def microbatch(self) -> int:
        """Samples of one forward."""
        return self.local_batch // self.microbatches


Runs = Callable[[Contender, float], LongRun]
"""A run with failures: by a strategy, of some seconds of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How much training a batch needs.

    Attributes:
        updates: until the target
        epochs: the same in epochs; None where the samples of an epoch are not known
        steps_per_epoch: samples of an epoch over those of a batch; None likewise
    """

    updates: "Need"
    epochs: "Need | None" = None
    steps_per_epoch: float | None = None

    def times(self, factor: float) -> "Training":
        """The training that needs a multiple of the samples."""
        epochs = None if self.epochs is None else self.epochs.scaled(factor, self.epochs.unit)
        return replace(self, updates=self.updates.scaled(factor, self.updates.unit), epochs=epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEstimate:
    """A strategy at a batch, with the training that it takes to the target.

    Attributes:
        contender: the strategy
        training: how much training; None without a curve
        time_s: to the target; None without a curve [s]
        time_interval_s: 90 % [s]
        cost: of the devices for so long, in `cost_unit`, with the spare nodes that were asked for
        cost_interval: 90 %
        cost_unit: "device-hours", or a currency where there is a price
        spares_cost: of the spare nodes of `run`, in the same unit; in `cost` where they were asked for
        run: the training with failures, which the time and the cost are of; None: without failures
    """

    contender: Contender
    training: Training | None = None
    time_s: float | None = None
    time_interval_s: tuple[float, float] | None = None
    cost: float | None = None
    cost_interval: tuple[float, float] | None = None
    cost_unit: str = "device-hours"
    spares_cost: float = 0.0
    run: LongRun | None = None

    @property
    def global_batch(self) -> int:
        """Samples of one update."""
        return self.contender.global_batch

    @property
    def devices(self) -> int:
        """That take part."""
        return self.contender.devices

    def value(self, goal: Goal) -> float:
        """The minimized figure in the unit of the goal; without a curve the time of a sample, with its factor [s]."""
        if goal == "throughput" or self.time_s is None:
            return self.contender.samples_factor / self.contender.samples_per_s
        return self.time_s if goal == "time" or self.cost is None else self.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridComparison:
    """The best hybrid against the best data parallelism, on any number of devices and at any batch.

    Attributes:
        data_parallel: the best of one network on each device, its local batch free; None: none fits
        hybrid: the best that spreads a network; None: none may be better
        reason: which one wins, and why
    """

    data_parallel: TargetEstimate | None
    hybrid: TargetEstimate | None
    reason: str


Price = Callable[[int, float], float]
"""Cost of some devices for some seconds."""


SECONDS_PER_HOUR = 3600.0


def device_hours(devices: int, seconds: float) -> float:
    """Hours of devices, where no price is given.

    Example:
        >>> device_hours(4, 1800.0)
        2.0
    """
    return devices * seconds / SECONDS_PER_HOUR


def combine(*figures: tuple[float, float, float]) -> tuple[float, float, float]:
    """The product of independent figures with their 90 % intervals.

    Args:
        figures: low, median and high of each: of a step [s], of how many there are, of what failures add

    Returns:
        Low, median, high of all of them [s].

    Example:
        >>> [round(value, 6) for value in combine((0.5, 1.0, 2.0), (100.0, 100.0, 100.0))]
        [50.0, 100.0, 200.0]
    """
    median = math.prod(one[1] for one in figures)
    down = math.hypot(*(_distance(middle, low) for low, middle, _ in figures))
    up = math.hypot(*(_distance(high, middle) for _, middle, high in figures))
    return median * math.exp(-down), median, median * math.exp(up)


def _distance(larger: float, smaller: float) -> float:
    """Of two positive figures in logarithms; nothing where they are in the other order."""
    return max(0.0, math.log(larger / smaller)) if larger > 0.0 and smaller > 0.0 else 0.0


def estimate(
    contender: Contender,
    training: Training | None,
    *,
    price: Price = device_hours,
    unit: str = "device-hours",
    runs: Runs | None = None,
) -> TargetEstimate:
    """Time and cost of a training by a strategy.

    Args:
        contender: the strategy
        training: at its batch; None: nothing is known of it
        price: of devices for a time
        unit: of the price
        runs: what failures, checkpoints and restarts make of it; None: nothing
    """
    if training is None:
        return TargetEstimate(contender=contender, cost_unit=unit)
    training = training.times(contender.samples_factor)
    need = training.updates
    updates = (need.low, need.amount, need.high)
    devices = contender.devices
    run = None if runs is None else runs(contender, contender.step_time_s * need.amount)
    low, median, high = combine(contender.cases, updates, *([] if run is None else [run.overhead]))
    if run is not None and run.reliability.holds_spares:
        devices += run.spare_devices
    return TargetEstimate(
        contender=contender,
        training=training,
        time_s=median,
        time_interval_s=(low, high),
        cost=price(devices, median),
        cost_interval=(price(devices, low), price(devices, high)),
        cost_unit=unit,
        spares_cost=0.0 if run is None else price(run.spare_devices, median),
        run=run,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Which estimate to take, which are on the front of time against cost, and whether a hybrid is worth it


def choose_estimate(estimates: Sequence[TargetEstimate], goal: Goal) -> TargetEstimate:
    """The best, unless its gain over a simpler or smaller one is within the uncertainty.

    Each batch stands for what a plan of that batch takes. Of strategies of the same kind on as many devices the best
    median is taken.

    Args:
        estimates: at least one
        goal: the objective
    """
    best = min(estimates, key=lambda one: (one.value(goal), one.contender.simplicity, one.global_batch))
    # Of one batch the curve says the same, whatever it says: there its uncertainty excuses nothing.
    plans = [_at_one_batch(of, goal) for of in _by_batch(estimates).values()]
    close = [one for one in plans if one.global_batch == best.global_batch or is_tied(one, best, goal)]
    least = min(one.contender.simplicity[:COARSE] for one in close)
    alike = [one for one in close if one.contender.simplicity[:COARSE] == least]
    near = min(one.value(goal) for one in alike) * (1.0 + MODEL_ERROR)
    equal = [one for one in alike if one.value(goal) <= near]
    return min(equal, key=lambda one: (one.contender.simplicity, one.value(goal), one.global_batch))


def _at_one_batch(estimates: Sequence[TargetEstimate], goal: Goal) -> TargetEstimate:
    """The simplest of those that may be as good as the best of their batch, as `planner.choice.choose` has it."""
    best = min(estimates, key=lambda one: (one.value(goal), one.contender.simplicity))
    close = [one for one in estimates if one is best or is_tied(one, best, goal)]
    return min(close, key=lambda one: (one.contender.simplicity, one.value(goal)))


def why_estimate(chosen: TargetEstimate, estimates: Sequence[TargetEstimate], goal: Goal) -> str:
    """Why `choose_estimate` has chosen one although another is predicted to be better; empty where none is.

    Args:
        chosen: one of them
        estimates: all
        goal: the objective
    """
    best = min(estimates, key=lambda one: one.value(goal))
    share = 1.0 - best.value(goal) / chosen.value(goal)
    if share <= 0.0 or not is_tied(chosen, best, goal):
        return ""
    words = simpler_option(chosen.contender.origin, best.contender.origin) or "fewer devices"
    digits = 0 if share >= 0.0095 else 1
    return (
        f"{_named(best, goal)} is predicted {100.0 * share:.{digits}f} % better than {_named(chosen, goal)}, which is "
        f"within the uncertainty: chosen for {words}"
    )


def choose_within(
    estimates: Sequence[TargetEstimate], *, within_s: float | None, budget: float | None
) -> tuple[TargetEstimate, bool]:
    """Of those that end in time and cost no more than may be spent, the cheapest; without a limit of time the fastest.

    Args:
        estimates: at least one, each with a time and a cost
        within_s: limit of the time [s]; None: there is none
        budget: limit of the cost; None: there is none

    Returns:
        The choice, and whether it is within the limits; where nothing is, the fastest, without a limit of time the
        cheapest.
    """

    def by_cost(one: TargetEstimate) -> tuple[float, float]:
        return one.value("cost"), one.value("time")

    def by_time(one: TargetEstimate) -> tuple[float, float]:
        return one.value("time"), one.value("cost")

    within = [
        one
        for one in estimates
        if (within_s is None or one.value("time") <= within_s) and (budget is None or one.value("cost") <= budget)
    ]
    if within:
        return min(within, key=by_time if within_s is None else by_cost), True
    return min(estimates, key=by_cost if within_s is None else by_time), False


def _by_batch(estimates: Sequence[TargetEstimate]) -> dict[int, list[TargetEstimate]]:
    found: dict[int, list[TargetEstimate]] = {}
    for one in estimates:
        found.setdefault(one.global_batch, []).append(one)
    return found


def is_tied(one: TargetEstimate, best: TargetEstimate, goal: Goal) -> bool:
    """Whether the uncertainty leaves room for an estimate to be as good as the best.

    Steps of one machine err together, so they are compared where all costs are low, at their median, and high. The
    errors of curves at two batches are independent: the distance may be as large as their two intervals in quadrature.

    Args:
        one: any
        best: with the smallest value
        goal: the objective
    """
    value, least = one.value(goal), best.value(goal)
    mine, theirs = one.contender.compared, best.contender.compared
    ratio = value / least / mine[1] * theirs[1]
    steps = min(own / other for own, other in zip(mine, theirs, strict=True))
    return steps * ratio <= (1.0 + MODEL_ERROR) * math.exp(_curve_slack(one, best, goal))


def _curve_slack(one: TargetEstimate, best: TargetEstimate, goal: Goal) -> float:
    """How far the curve may be wrong about the ratio of two batches, in logarithms."""
    same = one.global_batch == best.global_batch
    if same or goal == "throughput" or one.training is None or best.training is None:
        return 0.0
    mine, theirs = one.training.updates, best.training.updates
    return math.hypot(_log(mine.amount, mine.low), _log(theirs.high, theirs.amount))


def _log(larger: float, smaller: float) -> float:
    return math.log(larger / smaller) if larger > smaller > 0.0 else 0.0


def time_cost_front(estimates: Sequence[TargetEstimate]) -> tuple[TargetEstimate, ...]:
    """Those that no other one beats in both time and cost, fastest first.

    Args:
        estimates: with a time; those without are left out
    """
    timed = [one for one in estimates if one.time_s is not None and one.cost is not None]
    return front_of(
        timed,
        order=lambda one: (one.time_s, one.cost, one.contender.simplicity),
        costs=lambda one: (one.value("cost"),),
    )


def hybrid_verdict(estimates: Sequence[TargetEstimate], goal: Goal, *, is_complete: bool = True) -> HybridComparison:
    """The best hybrid against the best data parallelism.

    Args:
        estimates: all
        goal: the objective
        is_complete: all that may be better was looked at
    """

    def best_of(*, hybrid: bool) -> TargetEstimate | None:
        members = [one for one in estimates if one.contender.is_hybrid is hybrid]
        return min(members, key=lambda one: (one.value(goal), one.contender.simplicity), default=None)

    plain, hybrid = best_of(hybrid=False), best_of(hybrid=True)
    if hybrid is None:
        lacking = "no strategy that spreads a network over devices"
        reason = "fits and can be better" if is_complete else "was simulated before the time of the search ran out"
        return HybridComparison(data_parallel=plain, hybrid=None, reason=f"{lacking} {reason}")
    if plain is None:
        return HybridComparison(data_parallel=None, hybrid=hybrid, reason="no data parallelism fits")
    name, other = _named(plain, goal), _named(hybrid, goal)
    if hybrid.value(goal) >= plain.value(goal):
        reason = f"{name} beats the best hybrid, {other}"
    elif is_tied(plain, hybrid, goal):
        reason = f"{other} beats the best data parallelism, {name}, only within the uncertainty"
    else:
        reason = f"{other} beats the best data parallelism, {name}"
    return HybridComparison(data_parallel=plain, hybrid=hybrid, reason=reason)


def _named(one: TargetEstimate, goal: Goal) -> str:
    """A strategy with its batch, and with what it is judged by."""
    took = "" if one.time_s is None else f" ({format_duration(one.time_s)})"
    if goal == "cost" and one.cost is not None:
        took = f" ({format_figure(one.cost)} {one.cost_unit})"
    return f"{one.contender.name} at batch {one.global_batch}{took}"


LEAST_SAVED = 0.1
"""A doubling of the devices that saves less than this share of the time is not worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where to stop adding devices.

    Attributes:
        devices: beyond which a doubling saves less than the share; None: it saves more up to the last count
        interval: the same where the uncertainty is against large counts, and where it is for them; None: beyond the
            last count
        share: of the time that a doubling must save
        saved: for each count, the saving of the next one, scaled to a doubling; below 0: it takes longer
        counts: of devices that were compared
    """

    devices: int | None
    interval: tuple[int | None, int | None]
    share: float
    saved: Mapping[int, float]
    counts: tuple[int, ...]


def find_stop(estimates: Iterable[TargetEstimate], *, share: float = LEAST_SAVED) -> Stop:
    """Find the count of devices beyond which more of them save too little time.

    Args:
        estimates: with times; the fastest of each count stands for it
        share: of the time that a doubling must save
    """
    best: dict[int, TargetEstimate] = {}
    for one in estimates:
        kept = best.get(one.devices)
        if one.time_s is not None and (kept is None or one.time_s < (kept.time_s or math.inf)):
            best[one.devices] = one
    counts = tuple(sorted(best))
    cases = [_saved(best, counts, sign) for sign in (1, 0, -1)]
    pessimistic, median, optimistic = (_first_below(saved, share) for saved in cases)
    return Stop(
        devices=median,
        interval=(pessimistic, optimistic),
        share=share,
        saved=cases[1],
        counts=counts,
    )


def _saved(best: Mapping[int, TargetEstimate], counts: Sequence[int], sign: int) -> dict[int, float]:
    """Saving from each count to the next, scaled to a doubling; `sign` of the uncertainty that is added."""
    found = {}
    for fewer, more in itertools.pairwise(counts):
        before, after = best[fewer], best[more]
        doubt = math.exp(sign * _slack(before, after)) if sign else 1.0
        ratio = (after.time_s or 0.0) / (before.time_s or math.inf) * doubt
        found[fewer] = 1.0 - ratio ** (1.0 / math.log2(more / fewer))
    return found


def _slack(before: TargetEstimate, after: TargetEstimate) -> float:
    """How far the ratio of two times may be wrong, in logarithms: steps of one machine err together, curves apart."""
    slack = math.log(1.0 + MODEL_ERROR)
    if before.global_batch == after.global_batch or before.training is None or after.training is None:
        return slack
    widths = [
        math.log(need.high / need.low) / 2 for need in (before.training.updates, after.training.updates) if need.low > 0
    ]
    return math.hypot(slack, *widths)


def _first_below(saved: Mapping[int, float], share: float) -> int | None:
    return next((count for count, part in saved.items() if part < share), None)
