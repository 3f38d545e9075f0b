"""Input of a search, as one value, so that it can be changed and searched again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trimaran.base.errors import InputError
from trimaran.base.units import format_bytes
from trimaran.planner.bounds import Bound, QuickBounds, busiest_part
from trimaran.planner.candidates import Candidate, PricedJob, evaluate, lower_short, score
from trimaran.planner.memory_plans import Squeezes, least_squeeze, squeeze, squeeze_stages, squeezed
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.pipeline_stages import split_stages, split_within
from trimaran.planner.placed_network import PlacedStrategy, place_for
from trimaran.planner.space import EVERY_NUMBER, is_unplaced, samples_factor, stale_factor
from trimaran.pricing.compute import own_form
from trimaran.pricing.exchange.replica_memory import COMMUNICATOR_BYTES
from trimaran.pricing.exchange.unknowns import End
from trimaran.pricing.input_pipeline import InputPipeline
from trimaran.pricing.machine_transfers import device_order
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.program import least_peaks, price
from trimaran.pricing.tables import Curve, CurveKey
from trimaran.pricing.types import ProgramCosts
from trimaran.program.strategy import Execution, Strategy
from trimaran.simulator.engine import with_waits

# ---------------------------------------------------------------------------------------------------------------------
# Resources of the host for the input pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Resources of the host, and how long they are used.

    Attributes:
        memory_bytes: of the host, that this process may use [bytes]
        epochs: passes over the training data
        pipeline: input pipeline of each node of a machine of the catalog; None: this machine, whose samples are
            measured
    """

    memory_bytes: int = 0
    epochs: int = 1
    pipeline: InputPipeline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(PricedJob):
    """A job, its costs, its devices, and which plans of it there may be.

    The time of an epoch is made best where it has one, else that of a step.

    Attributes:
        devices: most ranks that may take part
        executions: how segments may run
        traces: step of a microbatch of the whole network, by its samples; a strategy with a memory budget needs one
        squeezed: strategies that lack memory for which memory plans are made; None: all with a traced step
        bare_curves: transfers where nothing holds the links back; empty where that is `table` itself, or not known
        pins: decisions of the user
        time_limit_s: work after which a search takes the best that it has (`work.py`) [s on the reference]; None: it
            ends by itself
        gap: a search may stop when the best is within this share of the lower bound
        room: resources of the host for loading; None: ranks load in line
        failed: `execution_key` of runs that were tried and failed, each with the reason
        by_devices: the best on each number of devices is asked for, as where costs are compared
    """

    devices: int
    executions: tuple[Execution, ...] = ("eager",)
    traces: Mapping[int, TracedStep] = field(default_factory=dict)
    squeezed: Collection[Strategy] | None = None
    bare_curves: Mapping[CurveKey, Curve] = field(default_factory=dict)
    pins: Pins = NO_PINS
    time_limit_s: float | None = None
    gap: float = 0.0
    room: Room | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    by_devices: bool = False

    def shared_among(self, searches: int) -> "Problem":
        """The same for one of several searches that together have its time.

        Args:
            searches: how many
        """
        if self.time_limit_s is None:
            return self
        return replace(self, time_limit_s=self.time_limit_s / max(1, searches))


def execution_key(strategy: Strategy) -> str:
    """How the runtime runs a strategy, in words: if one fails, all strategies with the same words fail.

    Example:
        >>> execution_key(Strategy(dp=2, zero=3)), execution_key(Strategy(dp=4, sync="p2p"))
        ('replicated sharded3 all-reduce eager', 'replicated p2p eager')
    """
    return f"{own_form(strategy)} {strategy.sync} {strategy.execution}"


def least(strategy: Strategy, problem: Problem) -> Bound:
    """Lower bounds of a strategy from totals, with the least peak of each of its ranks.

    Args:
        strategy: with boundaries or parts, where it has several stages
        problem: its problem
    """
    peak_bytes = least_peaks(problem.graph, strategy, problem.table, batch=problem.batch)
    return replace(quick_bounds(problem).of(strategy), peak_bytes=peak_bytes)


def by_busiest_part(strategy: Strategy, lower: Bound, problem: Problem) -> Bound:
    """A bound, raised to what the busiest rank, group or link has to do.

    Args:
        strategy: with boundaries
        lower: its bound from totals
        problem: its problem
    """
    if strategy.parts or strategy.memory_bytes is not None:
        return lower
    of_step = busiest_part(strategy, problem)
    steps = 1 if problem.epoch is None else problem.epoch.full_steps(problem.batch)
    low, median, high = (max(steps * own, known) for own, known in zip(of_step, lower.cases, strict=True))
    return replace(lower, step_time_s=max(of_step[1], lower.step_time_s), cases=(low, median, high))


def quick_bounds(problem: Problem) -> QuickBounds:
    """Bounds of its strategies from totals alone."""
    return QuickBounds(job=problem, balanced=problem.devices > EVERY_NUMBER)


def split_for(strategy: Strategy, problem: Problem, *, within_memory: bool = False) -> Strategy:
    """The strategy with its stages split for the costs of its microbatch, or its branches placed.

    Args:
        strategy: with or without boundaries
        problem: its problem
        within_memory: split for the memory of each device too, where time alone gives some too much

    Raises:
        InfeasibleError: the network has too few split points, or a row lacks modules that are pinned to it
    """
    strategy = arrange(strategy, problem)
    if is_unplaced(strategy):
        return place_on(strategy, problem).strategy
    if strategy.parts:
        return strategy
    kept = problem.pins.rows(problem.graph)
    if not within_memory:
        return split_stages(
            strategy, problem.graph, problem.table, batch=problem.batch, kept=kept, cluster=problem.cluster
        )
    limits = room_bytes(problem, strategy.devices)
    return split_within(
        strategy,
        problem.graph,
        problem.table,
        batch=problem.batch,
        kept=kept,
        memory_bytes=min(limits),
        cluster=problem.cluster,
    )


def place_on(strategy: Strategy, problem: Problem) -> PlacedStrategy:
    """A placement of the branches on the rows of a strategy, with the solver's bound and answer.

    Raises:
        InfeasibleError: the network does not fit the rows
    """
    return place_for(
        arrange(strategy, problem),
        problem,
        kept=problem.pins.rows(problem.graph),
        time_limit_s=problem.time_limit_s,
        gap=problem.gap,
    )


def arrange(strategy: Strategy, problem: Problem) -> Strategy:
    """The strategy on the devices of a machine: ranks that exchange most bytes are closest.

    Args:
        strategy: with or without boundaries
        problem: has the devices; where they are no machine of the catalog, rank r has device r
    """
    order = device_order(problem.cluster, strategy, problem.graph, batch=problem.batch)
    return strategy if order == strategy.device_order else replace(strategy, device_order=order)


def assess(strategy: Strategy, problem: Problem) -> Candidate:
    """Split and simulate one strategy, whether it fits or not.

    Raises:
        InfeasibleError: the network cannot be split so often
        InputError: the batch does not divide, or the table lacks something
    """
    return assess_split(split_for(strategy, problem), problem)


def assess_split(strategy: Strategy, problem: Problem, *, within_memory: bool = False) -> Candidate:
    """Simulate one strategy that has its boundaries.

    Args:
        strategy: with boundaries
        problem: its problem
        within_memory: whether it has to fit

    Raises:
        LacksMemory: it does not fit
        InfeasibleError: its memory budget is below the minimum memory of a step
        InputError: the batch does not divide, or the table or a trace lacks something
    """
    limits = room_bytes(problem, strategy.devices) if within_memory else None
    return _simulated(strategy, problem, effect_of_memory(strategy, problem), limits)


def least_in_memory(strategy: Strategy, problem: Problem) -> Candidate:
    """A strategy of whole networks with a memory budget, in the least time that any memory plan gives it.

    No plan is made, and its peak is that without one.

    Args:
        strategy: with a budget
        problem: its problem, with the trace of its microbatch
    """
    traced = problem.traces[problem.batch // (strategy.dp * strategy.microbatches)]
    least = least_squeeze(strategy, traced, host_bytes=problem.cluster.host_room(strategy.devices))
    return _simulated(strategy, problem, {0: least})


def _simulated(
    strategy: Strategy, problem: Problem, effect: Squeezes | None, limits: Sequence[int] | None = None
) -> Candidate:
    found = evaluate(strategy, problem, effect=effect, limits=limits)
    factor = samples_factor(strategy.compression, problem.pins) * stale_factor(strategy)
    return replace(found, samples_factor=factor)


def reassess(candidate: Candidate, problem: Problem) -> Candidate:
    """The same program by the costs of another problem, on its devices as they lie best there."""
    strategy = arrange(candidate.strategy, problem)
    found = score(candidate.program, strategy, problem, effect=effect_of_memory(strategy, problem))
    return replace(found, samples_factor=candidate.samples_factor)


def effect_of_memory(strategy: Strategy, problem: Problem) -> Squeezes | None:
    """Effect of a strategy's memory budget on its ranks; None where it has none.

    Raises:
        InfeasibleError: the budget is below the minimum memory of a step
        InputError: no step with its microbatch was traced
    """
    if strategy.memory_bytes is None:
        return None
    size = problem.batch // (strategy.dp * strategy.microbatches)
    traced = problem.traces.get(size)
    if traced is None:
        raise InputError(
            f"{strategy.name} has a memory budget, and no step with a microbatch of {size} was traced; "
            f"there are traces of {', '.join(map(str, sorted(problem.traces))) or 'none'}",
            code="plan.microbatch-not-traced",
            microbatch=size,
        )
    host_bytes = problem.cluster.host_room(strategy.devices)
    if strategy.pp == 1:
        return {0: squeeze(strategy, traced, host_bytes=host_bytes)}
    program = lower_short(strategy, problem, batch=problem.batch)
    costs = price(program, problem.graph, strategy, problem.table, problem.cluster, batch=problem.batch)
    node = problem.cluster.machine.node
    return squeeze_stages(
        strategy,
        traced,
        problem.graph,
        program,
        resident_bytes=costs.resident_bytes,
        through_memory=problem.table.fingerprint.kind == "cpu" and node.measured and node.rate_limit is None,
        host_bytes=host_bytes,
    )


def costs_of(candidate: Candidate, problem: Problem, *, end: End = "typical") -> ProgramCosts:
    """The costs by which a candidate was simulated, with its wait for data.

    Args:
        candidate: simulated
        problem: its job and machine
        end: where constants of a framework's exchange are taken that nobody has measured
    """
    costs = price(
        candidate.program,
        problem.graph,
        candidate.strategy,
        problem.table,
        problem.cluster,
        batch=problem.batch,
        end=end,
    )
    effect = effect_of_memory(candidate.strategy, problem)
    costs = costs if effect is None else squeezed(costs, candidate.program, effect)
    return with_waits(candidate.program, costs)


def lack_of_memory(
    peak_bytes: Sequence[int], problem: Problem, *, at_least: bool = False, devices: int | None = None
) -> str:
    """The first rank that needs more memory than its device has, with the figures; empty where all fit.

    Args:
        peak_bytes: largest live bytes of each rank [bytes]
        problem: has the devices
        at_least: they are lower bounds
        devices: of the strategy, where the ranks are some that stand for all; None: there are no others
    """
    room = room_bytes(problem, devices or len(peak_bytes))
    for rank, (nbytes, memory) in enumerate(zip(peak_bytes, room, strict=devices is None)):
        if nbytes > memory:
            needs = f"{'at least ' if at_least else ''}{format_bytes(nbytes)}"
            has = format_bytes(memory)
            more = f" and {format_bytes(nbytes - memory)} more" if format_bytes(nbytes) == has else ""
            besides = "" if memory == problem.cluster.memory_bytes[rank] else " besides NCCL's buffers"
            return f"rank {rank} needs {needs}{more}, its device has {has}{besides}"
    return ""


def room_bytes(problem: Problem, devices: int) -> tuple[int, ...]:
    """Memory of each device for what an allocator counts: on a machine of the catalog less NCCL's buffers [bytes].

    A limit below that of the device leaves room for them.

    Args:
        problem: has the devices
        devices: of a strategy, the first ones; one alone has no communicator
    """
    limits = problem.cluster.memory_bytes[:devices]
    if devices == 1 or problem.table.software is None:
        return limits
    there = problem.cluster.machine.node.device.usable_bytes - COMMUNICATOR_BYTES
    return tuple(max(limit - COMMUNICATOR_BYTES, min(limit, there)) for limit in limits)


def is_compiled_known(problem: Problem) -> bool:
    """Whether compiled segments of the job were measured."""
    return any(key.graph == problem.graph.digest and key.execution == "compiled" for key in problem.table.wholes)
