"""A strategy, priced and simulated.

The interval of a figure is that with every cost at the low end of its interval, and at the high end: costs measured on
one machine err together. On a machine of the catalog what nobody has measured of a framework's exchange is at its ends
too; candidates are compared without it, as it is the same for those with the same exchange, and `exchange_doubt.py`
says where another exchange may be faster.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.timeline import Timeline
from trimaran.graph.types import Graph
from trimaran.machine.types import Allocation
from trimaran.planner.epoch import EpochData, extra_parts
from trimaran.planner.explanation.critical_path import StepBottleneck, bottleneck, critical_path
from trimaran.planner.memory_plans import Squeezes, squeezed
from trimaran.pricing.exchange.unknowns import BOTH_ENDS, End
from trimaran.pricing.program import can_fold, price
from trimaran.pricing.tables import CostTable
from trimaran.pricing.types import IntervalEnd, ProgramCosts
from trimaran.program.lowering.lower import lower, lower_replica
from trimaran.program.plan_file import Objective
from trimaran.program.strategy import Strategy
from trimaran.program.types import Program
from trimaran.simulator.engine import simulate, with_waits


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedJob:
    """A job, its costs, and its devices.

    Attributes:
        graph: the job
        table: costs of its operations and of the links
        cluster: the devices
        batch: samples of one update, over all ranks
        clip: the job clips its gradients; the small last step of an epoch does so too
        epoch: find the time of one of these too; None: the time of a step alone
    """

    graph: Graph
    table: CostTable
    cluster: Allocation
    batch: int
    clip: bool = False
    epoch: EpochData | None = None


SHORT_BEYOND = 8
"""On more devices than these, one replica stands for all of them."""

Cases = tuple[float, float, float]
"""A duration where all costs are at the low end of their interval, at the median, and at the high end [s]."""


Ends = tuple[float, float]
"""A 90 % interval: where all costs are at the low end of theirs, and at the high end [s]."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy with its simulated step.

    Of the many that a search simulates few are asked for more than their time: `ends` and `binds` simulate, and follow
    the critical path, when they are called first.

    Attributes:
        strategy: with boundaries
        program: one step; on many devices that of the first replica, which stands for the others
        timeline: the simulation of it
        step_time_s: simulated [s]
        peak_bytes: largest live bytes of each rank [bytes]
        ends: the step, and the epoch where that is the objective, with all costs at both ends of their intervals [s]
        step_ends: the interval of the step, where it is not these ends; None: it is [s]
        binds: its bottleneck
        epoch_s: simulated time of an epoch with its evaluation, where that is the objective [s]
        samples_factor: factor on the samples that training needs until its target, for the loss by compression
    """

    strategy: Strategy
    program: Program
    timeline: Timeline
    step_time_s: float
    peak_bytes: tuple[int, ...]
    ends: Callable[[], tuple[Ends, Ends | None]] = dataclasses.field(compare=False, repr=False)
    binds: Callable[[], StepBottleneck] = dataclasses.field(compare=False, repr=False)
    epoch_s: float | None = None
    samples_factor: float = 1.0
    step_ends: Callable[[], Ends] | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def interval_s(self) -> Ends:
        """90 % interval of the step [s]."""
        return self.ends()[0] if self.step_ends is None else self.step_ends()

    @property
    def epoch_interval_s(self) -> Ends | None:
        """90 % interval of the epoch, where that is the objective [s]."""
        return None if self.epoch_s is None else self.ends()[1]

    @property
    def limiter(self) -> str:
        """Its bottleneck, with its time and share."""
        return self.binds().limiter

    @property
    def subject(self) -> str:
        """Its bottleneck without its share."""
        return self.binds().subject

    @property
    def groups_s(self) -> Mapping[str, float]:
        """Time of each group of classes on the critical path [s]; they sum to the step."""
        return self.binds().groups

    @property
    def name(self) -> str:
        """Of its strategy."""
        return self.strategy.name

    @property
    def objective(self) -> Objective:
        """The objective."""
        return "throughput" if self.epoch_s is None else "epoch"

    @property
    def time_s(self) -> float:
        """The time of an epoch where it is known, else that of a step [s]."""
        return self.step_time_s if self.epoch_s is None else self.epoch_s

    @property
    def objective_s(self) -> float:
        """The minimized figure: `time_s` times `samples_factor` [s]."""
        return self.samples_factor * self.time_s

    @property
    def worth_s(self) -> float:
        """Time of a step, as often as training needs it [s]."""
        return self.samples_factor * self.step_time_s

    @property
    def cases(self) -> Cases:
        """The objective with all costs low, at their median, and high [s]."""
        step, epoch = self.ends()
        low, high = step if self.epoch_s is None or epoch is None else epoch
        return self.samples_factor * low, self.objective_s, self.samples_factor * high


def cases_of(low: float, median: float, high: float) -> Cases:
    """The cases of a duration whose ends were computed by themselves: its median lies between them."""
    return min(low, median), median, max(median, high)


class LacksMemory(Exception):
    """A strategy needs more memory than its devices have.

    Attributes:
        peak_bytes: most that lives at once on each rank [bytes]
    """

    def __init__(self, peak_bytes: tuple[int, ...]) -> None:
        super().__init__(peak_bytes)
        self.peak_bytes = peak_bytes


def evaluate(
    strategy: Strategy, job: PricedJob, *, effect: Squeezes | None = None, limits: Sequence[int] | None = None
) -> Candidate:
    """Lower, price and simulate one strategy.

    Args:
        strategy: with boundaries
        job: with its costs and devices
        effect: of the strategy's memory budget; None: it has none
        limits: memory of each device [bytes]; None: whatever it needs

    Raises:
        LacksMemory: it needs more
    """
    return score(lower_short(strategy, job, batch=job.batch), strategy, job, effect=effect, limits=limits)


def lower_short(strategy: Strategy, job: PricedJob, *, batch: int) -> Program:
    """The program of a step; on many devices that of one replica alone, where the others do the same at the same time.

    Args:
        strategy: with boundaries
        job: with the costs of its links, and its devices
        batch: samples of the update, over all ranks: the job's, or that of some of its microbatches
    """
    if strategy.devices > SHORT_BEYOND and strategy.dp > 1:
        program = lower_replica(job.graph, strategy, batch=batch, clip=job.clip)
        if can_fold(program, strategy, job.table, job.cluster):
            return program
    return lower(job.graph, strategy, batch=batch, clip=job.clip)


def score(
    program: Program,
    strategy: Strategy,
    job: PricedJob,
    *,
    effect: Squeezes | None = None,
    limits: Sequence[int] | None = None,
) -> Candidate:
    """Price and simulate a program.

    Args:
        program: of the strategy
        strategy: with boundaries
        job: with its costs and devices
        effect: of the strategy's memory budget; None: it has none
        limits: memory of each device [bytes]; None: whatever it needs

    Raises:
        LacksMemory: it needs more; its time is not looked at
    """

    def costs_of(program: Program, strategy: Strategy, batch: int, end: End = "typical") -> ProgramCosts:
        costs = price(program, job.graph, strategy, job.table, job.cluster, batch=batch, end=end)
        return costs if effect is None else squeezed(costs, program, effect)

    costs = costs_of(program, strategy, job.batch)
    ready = with_waits(program, costs)
    timeline = simulate(program, ready)
    peaks = [timeline.peak_bytes(rank) for rank in range(len(program.ranks))]
    peak_bytes = tuple(peaks[rank % len(peaks)] for rank in range(strategy.devices))
    if limits is not None and any(peak > limit for peak, limit in zip(peak_bytes, limits, strict=False)):
        raise LacksMemory(peak_bytes)
    step_s = timeline.makespan_s
    steps = [(1, program, costs, step_s)]
    epoch_s = None
    if job.epoch is not None:
        steps = [(job.epoch.full_steps(job.batch), program, costs, step_s)]
        for part in extra_parts(strategy, job.epoch, batch=job.batch):
            few = part.lower(job.graph, clip=job.clip)
            extra = costs_of(few, part.strategy, part.batch)
            steps.append((part.count, few, extra, simulate(few, with_waits(few, extra)).makespan_s))
        epoch_s = sum(count * seconds for count, _, _, seconds in steps)

    @functools.cache
    def ends() -> tuple[Ends, Ends | None]:
        found = [(count, _ends(one, its_costs, median_s)) for count, one, its_costs, median_s in steps]
        step = found[0][1]
        if epoch_s is None:
            return step, None
        return step, (sum(count * low for count, (low, _) in found), sum(count * high for count, (_, high) in found))

    @functools.cache
    def step_ends() -> Ends:
        both = [at_end(costs_of(program, strategy, job.batch, unknowns), end) for unknowns, end in BOTH_ENDS]
        return _simulated_ends(program, both, step_s)

    @functools.cache
    def binds() -> StepBottleneck:
        # The wait is in the loads then, which costs with a period do not have.
        waits = costs.period is not None and ready.compute != costs.compute
        return bottleneck(program, critical_path(program, ready), strategy, step_s=step_s, waits=waits)

    return Candidate(
        strategy=strategy,
        program=program,
        timeline=timeline,
        step_time_s=step_s,
        peak_bytes=peak_bytes,
        ends=ends,
        binds=binds,
        epoch_s=epoch_s,
        step_ends=None if job.table.software is None else step_ends,
    )


def _ends(program: Program, costs: ProgramCosts, median_s: float) -> Ends:
    return _simulated_ends(program, (at_end(costs, "low"), at_end(costs, "high")), median_s)


def _simulated_ends(program: Program, both: Sequence[ProgramCosts], median_s: float) -> Ends:
    low_s, high_s = (simulate(program, with_waits(program, end)).makespan_s for end in both)
    return min(low_s, median_s), max(high_s, median_s)


def at_end(costs: ProgramCosts, end: IntervalEnd) -> ProgramCosts:
    """The costs with every duration at one end of its interval.

    Args:
        costs: with intervals
        end: "low" or "high"
    """
    return dataclasses.replace(
        costs,
        compute={name: cost.at(end) for name, cost in costs.compute.items()},
        transfers={name: transfer.at(end) for name, transfer in costs.transfers.items()},
        decoding={name: cost.at(end) for name, cost in costs.decoding.items()},
        second_rounds={
            name: dataclasses.replace(second, between=second.between.at(end), transfer=second.transfer.at(end))
            for name, second in costs.second_rounds.items()
        },
        period=None if costs.period is None else costs.period.at(end),
    )
