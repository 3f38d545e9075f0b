"""Lower bounds of a step's time and memory, without simulating it.

From totals alone: nothing is split, placed, lowered or priced, so hundreds of strategies take no time.

With w the forward and backward of the network for a microbatch of n samples on one device, M microbatches, K rows of T
shards each:

    step >= load(n) + M · w(n) / (K · T)                                   the busiest rank has its share at least
    step >= load(n) + w(n) / (1 - (1 - 1/M)^K)                             a chain of stages in GPipe's or 1F1B's order
    step >= load(n) + the longest path through the operations of a microbatch
    peak >= state of the network / (K · T, and the replicas where they share it)

The second: stage k starts after a forward, and ends before a backward, of each stage before it, so the step takes
P(k) + M t(k) at least, where P(k) sums the t before k. The split that makes the largest of these smallest makes all of
them equal. With backwards in two halves only the forwards are sure to come first: P(k) is then their share of it.

The largest of R parts is a lower bound for the fullest rank. Forms of running a segment differ by a factor; the
smallest counts. Interference below 1 is taken to hold all the time. The update counts by its bytes.

From the program: a strategy with M microbatches is lowered and priced with at most two of them, at the size that they
have; the first stands for those that are left out. The rank, the group or the link that has most to do bounds the step.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trimaran.base.timeline import COMPUTE
from trimaran.graph.types import Graph
from trimaran.planner.candidates import Cases, PricedJob, cases_of, lower_short
from trimaran.planner.communication_bounds import TrafficBounds
from trimaran.pricing.compute import context_of, operation_costs, own_form
from trimaran.pricing.curves import at_batch
from trimaran.pricing.program import price, straggling_share
from trimaran.pricing.tables import FORMS
from trimaran.pricing.types import Cost, ProgramCosts, Transfer, add, multiply
from trimaran.program.lowering.schedules import BACKWARDS, FORWARDS
from trimaran.program.strategy import Execution, Strategy
from trimaran.program.types import SENDS, Instruction, Program

_REPEATED = FORWARDS | BACKWARDS


# Enough to tell the microbatch that completes the gradients from the others.
PRICED_MICROBATCHES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds of a candidate.

    Attributes:
        step_time_s: of a step, with all costs at their median [s]
        cases: of a step, or an epoch, with all costs low, at their median, and high [s]
        peak_bytes: largest live bytes of each rank of a replica, or of the fullest [bytes]
    """

    step_time_s: float
    cases: Cases
    peak_bytes: tuple[int, ...]

    @property
    def objective_s(self) -> float:
        """Lower bound on the objective, with all costs at their median [s]."""
        return self.cases[1]


def busiest_part(strategy: Strategy, job: PricedJob) -> Cases:
    """Lower bound on a step for any schedule and any sharding: that of the rank, the group or the link with most to do.

    A rank computes one operation at a time and waits for the collectives inside its steps; a group does its collectives
    one after the other; and what flows over a link at once takes as long together as one after the other.

    A network whose layers are shared is not evenly shared: work that every rank of a layer repeats counts in full
    here, and only its mean part in bounds from totals.

    Args:
        strategy: with boundaries
        job: with its costs and devices

    Returns:
        With all costs low, at their median, and high [s].
    """
    few = min(strategy.microbatches, PRICED_MICROBATCHES)
    microbatch = job.batch // (strategy.dp * strategy.microbatches)
    short = replace(strategy, microbatches=few)
    size = strategy.dp * few * microbatch
    program = lower_short(short, job, batch=size)
    costs = price(program, job.graph, short, job.table, job.cluster, batch=size)
    left_out = strategy.microbatches - few
    shrink = min(1.0, costs.interference.compute, costs.interference.communication, costs.interference.latency)
    busy = [_busy(instructions, costs, left_out) for instructions in program.ranks]
    parts = [*busy, *_moving(program, costs, left_out)]
    low_s, median_s, high_s = (max(one) * shrink for one in zip(*parts, strict=True))
    return cases_of(low_s, median_s, high_s)


def _busy(instructions: Sequence[Instruction], costs: ProgramCosts, left_out: int) -> Cases:
    """Compute of a rank and what it waits for inside, at each end of the intervals [s].

    The first microbatch stands for those left out.
    """
    low_s = median_s = high_s = 0.0
    for item in instructions:
        if item.stream != COMPUTE:
            continue
        times = 1 + left_out if item.microbatch == 0 and item.kind in _REPEATED else 1
        low, median, high = _busy_s(item, costs)
        low_s += times * low
        median_s += times * median
        high_s += times * high
    return low_s, median_s, high_s


def _busy_s(item: Instruction, costs: ProgramCosts) -> Cases:
    """Compute of an instruction and what it waits for inside [s]."""
    cost = costs.compute.get(item.id)
    if cost is None:
        return 0.0, 0.0, 0.0
    low_s, median_s, high_s = cost.low, cost.seconds, cost.high
    for mark in item.marks:
        # A mark that waits for what it starts; one that ends in ".wait" waits for what was started before it.
        waited = costs.transfers.get(f"r{item.rank}/{mark.waits_for}") if mark.waits_for else None
        if waited is not None and mark.waits_for.endswith(f"#{mark.name}"):
            low_s += waited.low
            median_s += waited.seconds
            high_s += waited.high
    return low_s, median_s, high_s


def _moving(program: Program, costs: ProgramCosts, left_out: int) -> Iterator[Cases]:
    """Time of the transfers of each group, and of the bytes on each link, at each end of the intervals [s]."""
    groups: dict[tuple[int, ...], list[float]] = {}
    links: dict[str, list[float]] = {}
    # Transfers that are alike have one price, so that each is added up once.
    counts: dict[int, int] = {}
    alike: dict[int, Transfer] = {}
    for item in program:
        if not (item.kind in SENDS or (item.group and item.rank == item.group[0])):
            continue
        transfer = costs.transfers[item.id]
        times = 1 + left_out if item.microbatch == 0 else 1
        if item.group and costs.at_once == 1:
            _add_to(groups.setdefault(item.group, [0.0, 0.0, 0.0]), transfer, float(times))
        alike[id(transfer)] = transfer
        counts[id(transfer)] = counts.get(id(transfer), 0) + times
    for name, transfer in alike.items():
        _flow(links, transfer, counts[name])
    for total in (*groups.values(), *links.values()):
        yield total[0], total[1], total[2]


def _flow(links: dict[str, list[float]], transfer: Transfer, times: int) -> None:
    """Add the bytes of a transfer to the times of the links that they cross [s]."""
    share = times * transfer.flow_share
    taken_s = [share * seconds for seconds in transfer.ends]
    for link in dict.fromkeys(transfer.links):
        _add(links, link, taken_s)


def _add(links: dict[str, list[float]], link: str, seconds: Sequence[float]) -> None:
    total = links.setdefault(link, [0.0, 0.0, 0.0])
    for end, own_s in enumerate(seconds):
        total[end] += own_s


def _add_to(total: list[float], transfer: Transfer, times: float) -> None:
    for number, seconds in enumerate(transfer.ends):
        total[number] += seconds * times


_ENDS = ("low", "seconds", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A microbatch on one device, at one end of the intervals [s]: its forward, its backward, the longest path."""

    forward: float
    backward: float
    path: float

    @property
    def both(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """All operations of a microbatch on one device: their sums, the factors of execution forms, the longest path.

    In however many pieces they run, these are the same.
    """

    forward: Cost
    backward: Cost
    forward_factors: tuple[Cost, ...]
    backward_factors: tuple[Cost, ...]
    path: float

    def in_pieces(self, pieces: int) -> tuple[_Work, ...]:
        """The work where it runs in a number of segments, at each end of the intervals."""
        # At the other ends the path is as uncertain as all of its operations, each by itself, make it.
        return tuple(
            _Work(
                forward=min(_end(self.forward, factor, pieces, end) for factor in self.forward_factors),
                backward=min(_end(self.backward, factor, pieces, end) for factor in self.backward_factors),
                path=self.path if end != "low" else 0.0,
            )
            for end in _ENDS
        )


@dataclass(slots=True, kw_only=True)
class QuickBounds:
    """Lower bounds of the strategies of a job; terms that depend only on the microbatch are computed once.

    Attributes:
        job: with its costs and devices
        balanced: take stages for equal, which makes the bounds of chains those of the formulas: for searches so
            large that a bound which no split whatever can undercut would leave too much
    """

    job: PricedJob
    balanced: bool = False
    _traffic: TrafficBounds = field(init=False)
    _works: dict[tuple[int, Execution, str], _Totals] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._traffic = TrafficBounds(job=self.job)

    def of(self, strategy: Strategy) -> Bound:
        """Lower bounds of a strategy.

        Args:
            strategy: with or without boundaries

        Raises:
            InputError: the table lacks an operation
        """
        microbatch = self.job.batch // (strategy.dp * strategy.microbatches)
        pieces = strategy.pp * strategy.chunks if not strategy.parts else len(self.job.graph.ops)
        works = self._at(microbatch, strategy.execution, own_form(strategy), pieces)
        traffic = self._traffic.of(strategy)
        step = self.job.table.steps.get(self.job.graph.digest)
        load_s = at_batch(step.load, microbatch).low if step and step.load else 0.0
        straggling = straggling_share(self.job.table, self.job.cluster, strategy.devices)
        low, median, high = (
            self._step(strategy, work, ends, load_s=load_s, straggling=straggling)
            for work, ends in zip(works, traffic.ends, strict=True)
        )
        cases = cases_of(low, median, high)
        if self.job.epoch is not None:
            count = self.job.epoch.full_steps(self.job.batch)
            cases = (low * count, median * count, high * count)
        return Bound(step_time_s=median, cases=cases, peak_bytes=(self._least_peak(strategy),))

    def share(self, other: "QuickBounds") -> None:
        """Know the works of microbatches that another one knows, of the same graph and costs."""
        self._works = other._works

    def _step(
        self, strategy: Strategy, work: _Work, traffic: tuple[float, float, float], *, load_s: float, straggling: float
    ) -> float:
        """At one end of the intervals, of the work of a microbatch and of the traffic (`Traffic.ends`) [s]."""
        shares = strategy.tp if strategy.tp > 1 else strategy.dp if strategy.shards else 1
        count, rows = strategy.microbatches, strategy.pp
        forward_s, backward_s, exchange_s = traffic
        whole = work.both / shares + forward_s + backward_s
        spread = count * whole / rows
        path = work.path / shares
        chain = 0.0
        if strategy.is_stale:
            # Steps overlap: neither the chain of stages nor the path of a batch is waited for, only the busiest stage.
            path = 0.0
        elif rows > 1 and not strategy.parts:
            before = 1.0
            if strategy.schedule == "zero-bubble" and whole:
                before = (work.forward / shares + forward_s) / whole
            if self.balanced:
                units = (count + (rows - 1) * before / strategy.chunks) / rows
            else:
                units = _chain(count, rows, before) if strategy.chunks == 1 else 0.0
            chain = units * whole
        least = min((min(1.0, entry.compute) for entry in self.job.table.interference.values()), default=1.0)
        waits = straggling * spread
        if strategy.is_stale:
            return least * (spread + waits)
        # Where factors of interference lengthen communication it is at least as long; none of the catalog shortens it.
        step_s = max(least * max(spread, path, chain) + load_s, exchange_s)
        return step_s + least * waits

    def _at(self, microbatch: int, execution: Execution, form: str, pieces: int) -> tuple[_Work, ...]:
        key = (microbatch, execution, form)
        if key not in self._works:
            self._works[key] = self._totals(*key)
        return self._works[key].in_pieces(pieces)

    def _totals(self, microbatch: int, execution: Execution, form: str) -> _Totals:
        graph, table = self.job.graph, self.job.table
        costs = operation_costs(graph, table, batch=microbatch, execution=execution)
        contexts = [
            context_of(graph, table, costs, batch=microbatch, form=one, execution=execution)
            for one in dict.fromkeys((*FORMS, form))
        ]
        factor_f = min(context.forward.seconds for context in contexts)
        factor_b = min(context.backward.seconds for context in contexts)
        medians = {
            name: cost.forward.seconds * factor_f + cost.backward.seconds * factor_b for name, cost in costs.items()
        }
        return _Totals(
            forward=add([cost.forward for cost in costs.values()]),
            backward=add([cost.backward for cost in costs.values()]),
            forward_factors=tuple(context.forward for context in contexts),
            backward_factors=tuple(context.backward for context in contexts),
            path=max(earliest_ends(graph, medians).values(), default=0.0),
        )

    def _least_peak(self, strategy: Strategy) -> int:
        step = self.job.table.steps.get(self.job.graph.digest)
        kept = step.state_bytes_per_byte if step else 0.0
        replicas = strategy.dp
        classifier = bool(strategy.shards) and strategy.tp == 1
        parameters = self.job.graph.parameters
        trained = sum(parameter.nbytes for parameter in parameters if parameter.trainable)
        frozen = sum(parameter.nbytes for parameter in parameters if not parameter.trainable)
        weights = (trained + frozen) / (replicas if strategy.zero == 3 or classifier else 1)
        gradients = trained / (replicas if strategy.zero >= 2 or classifier else 1)
        owned = strategy.zero >= 1 or strategy.sync == "p2p" or classifier
        state = trained * kept / (replicas if owned else 1)
        return int((weights + gradients + state) / (strategy.pp * strategy.tp))


def _end(whole: Cost, factor: Cost, pieces: int, end: str) -> float:
    """One end of the interval of all operations together, priced in a number of segments [s].

    Errors of operations are independent: the sum of K segments is less certain than the sum of all operations, by at
    most the root of K. So its high end is at least that of the whole, and its low end at least the remainder.
    """
    if end == "low":
        width = (whole.seconds - whole.low) * math.sqrt(pieces)
        whole = replace(whole, low=max(0.0, whole.seconds - width))
    return float(getattr(multiply(whole, factor), end)) if end != "seconds" else whole.seconds * factor.seconds


def earliest_ends(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    """When each operation ends at the earliest, by its id [s].

    Args:
        graph: the job's
        seconds: of each operation, by id [s]
    """
    made: dict[str, float] = {}
    ends = {}
    for op in graph.ops:
        ends[op.id] = max((made[name] for name in op.inputs if name in made), default=0.0) + seconds[op.id]
        made.update(dict.fromkeys((spec.name for spec in op.outputs), ends[op.id]))
    return ends


def shortest_path(strategy: Strategy, job: PricedJob) -> Cases:
    """The longest path through the operations of a microbatch, with each of them as short as it may be [s].

    Errors of operations are independent, so however they are grouped, what runs together is not shorter at the low end
    than its operations by themselves.

    Args:
        strategy: a placement
        job: with its costs

    Returns:
        The low end; the bounds from totals have the others.

    Raises:
        InputError: the table lacks an operation
    """
    microbatch = job.batch // (strategy.dp * strategy.microbatches)
    costs = operation_costs(job.graph, job.table, batch=microbatch, execution=strategy.execution)
    contexts = [
        context_of(job.graph, job.table, costs, batch=microbatch, form=form, execution=strategy.execution)
        for form in dict.fromkeys((*FORMS, own_form(strategy)))
    ]
    lows = {
        name: min(multiply(cost.forward, context.forward).low for context in contexts)
        + min(multiply(cost.backward, context.backward).low for context in contexts)
        for name, cost in costs.items()
    }
    compute = min((min(1.0, entry.compute) for entry in job.table.interference.values()), default=1.0)
    low_s = compute * max(earliest_ends(job.graph, lows).values(), default=0.0)
    return low_s, low_s, low_s


def _chain(microbatches: int, stages: int, before: float) -> float:
    """The least that a step of a chain takes, in units of one microbatch on one device.

    The smallest T with P(k) + M t(k) <= T for every stage k, where P(k) is `before` times the sum of the t before k.

    Args:
        microbatches: M
        stages: in the chain
        before: part of a stage's work on a microbatch that must come before the next stage's, or after it

    Example:
        >>> _chain(1, 4, 1.0), _chain(2, 2, 1.0)  # one microbatch goes through all; t(0) = T/2, t(1) = T/4
        (1.0, 1.3333333333333333)
    """
    left, total = 1.0, 0.0
    for _ in range(stages):
        own = left / microbatches
        total += own
        left -= before * own
    return 1.0 / total
