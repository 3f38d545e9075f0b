"""Lower bounds of a step's time and memory, without simulating it.

From totals alone: nothing is split, placed, lowered or priced, so hundreds of strategies take no time. With w the
forward and backward of the network for a microbatch of n samples on one device, M microbatches, K rows of T shards:

    step >= load(n) + M · w(n) / (K · T)                                   the busiest rank has its share at least
    step >= load(n) + w(n) / (1 - (1 - 1/M)^K)                             a chain of stages in GPipe's or 1F1B's order
    step >= load(n) + the longest path through the operations of a microbatch
    peak >= state of the network / (K · T, and the replicas where they share it)

The second: stage k starts after a forward, and ends before a backward, of each stage before it, so the step takes
P(k) + M t(k) at least, where P(k) sums the t before k. The split that makes the largest of these smallest makes all of
them equal. With backwards in two halves only the forwards are sure to come first: P(k) is then their share of it.

The largest of R parts is a lower bound for the fullest rank. Forms of running a segment differ by a factor; the
smallest counts. Interference below 1 is taken to hold all the time. The update counts by its bytes.

The busiest part: a program of two microbatches is priced, the first of which stands for those that are left out, and
the rank, the group or the link with most to do takes at least the time of what it does.
"""

import math
from collections.abc import Iterator, Mapping
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
from trimaran.program.types import SENDS, Instruction

_REPEATED = FORWARDS | BACKWARDS


_Part = int | tuple[int, ...] | str
"""A rank, a group, or a link."""

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
    first = 1 + strategy.microbatches - few
    loads: dict[_Part, list[float]] = {}
    # Transfers that are alike have one price, so that each is added to its links once.
    counts: dict[int, tuple[Transfer, int]] = {}
    for item in program:
        times = first if item.microbatch == 0 else 1
        if item.stream == COMPUTE:
            for spent in _waited(item, costs):
                _add(loads, item.rank, spent, times if item.kind in _REPEATED else 1)
        elif item.kind in SENDS or (item.group and item.rank == item.group[0]):
            transfer = costs.transfers[item.id]
            if item.group and costs.at_once == 1:
                _add(loads, item.group, transfer.ends, times)
            counts[id(transfer)] = transfer, counts.get(id(transfer), (transfer, 0))[1] + times
    for transfer, count in counts.values():
        for link in dict.fromkeys(transfer.links):
            _add(loads, link, transfer.ends, count * transfer.flow_share)
    shrink = min(1.0, costs.interference.compute, costs.interference.communication, costs.interference.latency)
    low_s, median_s, high_s = (max(one) * shrink for one in zip((0.0, 0.0, 0.0), *loads.values(), strict=True))
    return cases_of(low_s, median_s, high_s)


def _waited(item: Instruction, costs: ProgramCosts) -> Iterator[Cases]:
    """Compute of an instruction, and what it waits for inside, at each end of the intervals [s]."""
    cost = costs.compute.get(item.id)
    if cost is None:
        return
    yield cost.low, cost.seconds, cost.high
    for mark in item.marks:
        # A mark that waits for what it starts; one that ends in ".wait" waits for what was started before it.
        waited = costs.transfers.get(f"r{item.rank}/{mark.waits_for}") if mark.waits_for else None
        if waited is not None and mark.waits_for.endswith(f"#{mark.name}"):
            yield waited.ends


def _add(loads: dict[_Part, list[float]], part: _Part, ends: Cases, times: float) -> None:
    total = loads.setdefault(part, [0.0, 0.0, 0.0])
    for end, seconds in enumerate(ends):
        total[end] += times * seconds


_ENDS = ("low", "seconds", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class _MicrobatchWork:
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
    shortest_path: float

    def in_pieces(self, pieces: int) -> tuple[_MicrobatchWork, ...]:
        """The work where it runs in a number of segments, at each end of the intervals."""
        return tuple(
            _MicrobatchWork(
                forward=min(_end(self.forward, factor, pieces, end) for factor in self.forward_factors),
                backward=min(_end(self.backward, factor, pieces, end) for factor in self.backward_factors),
                path=self.shortest_path if end == "low" else self.path,
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
        self,
        strategy: Strategy,
        work: _MicrobatchWork,
        traffic: tuple[float, float, float],
        *,
        load_s: float,
        straggling: float,
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

    def _at(self, microbatch: int, execution: Execution, form: str, pieces: int) -> tuple[_MicrobatchWork, ...]:
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
        forwards, backwards = [one.forward for one in contexts], [one.backward for one in contexts]
        factor_f, factor_b = (min(one.seconds for one in factors) for factors in (forwards, backwards))
        medians = {
            name: cost.forward.seconds * factor_f + cost.backward.seconds * factor_b for name, cost in costs.items()
        }
        # Errors of operations are independent: however they are grouped, what runs together is not shorter at the low
        # end than its operations by themselves.
        lows = {
            name: min(multiply(cost.forward, factor).low for factor in forwards)
            + min(multiply(cost.backward, factor).low for factor in backwards)
            for name, cost in costs.items()
        }
        return _Totals(
            forward=add([cost.forward for cost in costs.values()]),
            backward=add([cost.backward for cost in costs.values()]),
            forward_factors=tuple(forwards),
            backward_factors=tuple(backwards),
            path=max(earliest_ends(graph, medians).values(), default=0.0),
            shortest_path=max(earliest_ends(graph, lows).values(), default=0.0),
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
