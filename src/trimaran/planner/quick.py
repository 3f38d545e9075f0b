"""Lower bounds from totals alone: nothing is cut, placed, lowered or priced, so hundreds of strategies take no time.

With w the forward and backward of the network for a microbatch of n samples on one device, M microbatches, K rows of T
shards each:

    step >= load(n) + M · w(n) / (K · T)                                   the busiest rank has its share at least
    step >= load(n) + w(n) / (1 - (1 - 1/M)^K)                             a chain of stages in GPipe's or 1F1B's order
    step >= load(n) + the longest path through the operations of a microbatch
    peak >= state of the network / (K · T, and the replicas where they share it)

The second: stage k starts after a forward, and ends before a backward, of each stage before it, so the step takes
P(k) + M t(k) at least, where P(k) sums the t before k. The cut that makes the largest of these smallest makes all of
them equal. With backwards in two halves only the forwards are sure to come first: P(k) is then their share of it.

The largest of R parts is what the fullest rank has at least. Forms of running a segment differ by a factor; the
smallest counts. Interference below 1 is taken to hold all the time. The update counts by its bytes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trimaran.costs import CostTable
from trimaran.costs.compute import FORMS, context_of, operation_costs, own_form
from trimaran.costs.curves import at_batch
from trimaran.costs.intervals import add, multiply
from trimaran.costs.types import Cost
from trimaran.graph import Graph
from trimaran.planner.bounds import Bound
from trimaran.planner.candidates import Cases
from trimaran.planner.epoch import EpochData
from trimaran.program import Strategy
from trimaran.program.types import Execution

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
    """All operations of a microbatch on one device: their sums, what forms of running them multiply, the longest path.

    In however many pieces they run, these are the same.
    """

    forward: Cost
    backward: Cost
    forward_factors: tuple[Cost, ...]
    backward_factors: tuple[Cost, ...]
    path: float

    def in_pieces(self, pieces: int) -> tuple[_Work, ...]:
        """The work where it runs in so many segments, at each end of the intervals."""
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
    """Lower bounds of the strategies of a job; what depends on the microbatch alone is found once.

    Attributes:
        graph: the job's
        table: costs of its operations
        batch: samples of one update, over all ranks
        epoch: bound the time of one of these, not of a step
        balanced: take stages for equal, which makes the bounds of chains those of the closed forms: for searches so
            large that a bound which no cut whatever can undercut would leave too much
    """

    graph: Graph
    table: CostTable
    batch: int
    epoch: EpochData | None = None
    balanced: bool = False
    _works: dict[tuple[int, Execution, str], _Totals] = field(default_factory=dict)

    def of(self, strategy: Strategy) -> Bound:
        """What a strategy takes at least.

        Args:
            strategy: with or without boundaries

        Raises:
            InputError: the table lacks an operation
        """
        low, median, high = (self._step(strategy, number) for number in range(len(_ENDS)))
        cases: Cases = (min(low, median), median, max(median, high))
        if self.epoch is not None:
            count = self.epoch.full_steps(self.batch)
            cases = (low * count, median * count, high * count)
        return Bound(step_time_s=median, cases=cases, peak_bytes=(self._least_peak(strategy),))

    def share(self, other: "QuickBounds") -> None:
        """Know the works of microbatches that another one knows, of the same graph and costs."""
        self._works = other._works

    def _step(self, strategy: Strategy, number: int) -> float:
        microbatch = self.batch // (strategy.dp * strategy.microbatches)
        pieces = strategy.pp * strategy.chunks if not strategy.parts else len(self.graph.ops)
        work = self._at(microbatch, strategy.execution, own_form(strategy), pieces)[number]
        shares = strategy.tp if strategy.tp > 1 else strategy.dp if strategy.shards else 1
        count, rows = strategy.microbatches, strategy.pp
        spread = count * work.both / (rows * shares)
        path = work.path / shares
        chain = 0.0
        if rows > 1 and not strategy.parts:
            before = work.forward / work.both if strategy.schedule == "zero-bubble" and work.both else 1.0
            if self.balanced:
                units = (count + (rows - 1) * before / strategy.chunks) / rows
            else:
                units = _chain(count, rows, before) if strategy.chunks == 1 else 0.0
            chain = units * work.both / shares
        step = self.table.steps.get(self.graph.digest)
        load_s = at_batch(step.load, microbatch).low if step and step.load else 0.0
        least = min((min(1.0, entry.compute) for entry in self.table.interference.values()), default=1.0)
        return least * max(spread, path, chain) + load_s

    def _at(self, microbatch: int, execution: Execution, form: str, pieces: int) -> tuple[_Work, ...]:
        key = (microbatch, execution, form)
        if key not in self._works:
            self._works[key] = self._totals(*key)
        return self._works[key].in_pieces(pieces)

    def _totals(self, microbatch: int, execution: Execution, form: str) -> _Totals:
        graph, table = self.graph, self.table
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
            path=critical_path_s(graph, medians),
        )

    def _least_peak(self, strategy: Strategy) -> int:
        step = self.table.steps.get(self.graph.digest)
        kept = step.state_bytes_per_byte if step else 0.0
        replicas = strategy.dp
        classifier = bool(strategy.shards) and strategy.tp == 1
        parameters = self.graph.parameters
        trained = sum(parameter.nbytes for parameter in parameters if parameter.trainable)
        frozen = sum(parameter.nbytes for parameter in parameters if not parameter.trainable)
        weights = (trained + frozen) / (replicas if strategy.zero == 3 or classifier else 1)
        gradients = trained / (replicas if strategy.zero >= 2 or classifier else 1)
        owned = strategy.zero >= 1 or strategy.sync == "p2p" or classifier
        state = trained * kept / (replicas if owned else 1)
        return int((weights + gradients + state) / (strategy.pp * strategy.tp))


def _end(whole: Cost, factor: Cost, pieces: int, end: str) -> float:
    """One end of the interval of all operations together, priced in so many segments [s].

    Errors of operations are independent: the sum of K segments is less certain than the sum of all operations, by at
    most the root of K. So its high end is at least that of the whole, and its low end at least what that leaves.
    """
    if end == "low":
        width = (whole.seconds - whole.low) * math.sqrt(pieces)
        whole = replace(whole, low=max(0.0, whole.seconds - width))
    return float(getattr(multiply(whole, factor), end)) if end != "seconds" else whole.seconds * factor.seconds


def critical_path_s(graph: Graph, seconds: Mapping[str, float]) -> float:
    """The longest path through the operations [s].

    Args:
        graph: the job's
        seconds: of each operation, by id [s]
    """
    ends: dict[str, float] = {}
    longest = 0.0
    for op in graph.ops:
        end = max((ends[name] for name in op.inputs if name in ends), default=0.0) + seconds[op.id]
        ends.update({spec.name: end for spec in op.outputs})
        longest = max(longest, end)
    return longest


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
