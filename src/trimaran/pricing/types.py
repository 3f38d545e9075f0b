"""Costs with their uncertainty, and the costs of a program that the simulator reads.

Formulas inside this package return plain floats in SI units. Its public functions return a `Cost`: a median, a 90 %
interval and a source.

How intervals combine.

Two kinds of error. The errors of different operations are taken as independent: half-widths add in quadrature. The
error of a factor that all of them share (the context, a slow minute of the machine) is common: it scales the sum as a
whole. Both are approximations for 90 % intervals that need not be symmetric, so the two sides are treated separately.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

IntervalEnd = Literal["low", "seconds", "high"]
"""Lower end of an interval, median, and upper end."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A duration with its 90 % interval.

    Attributes:
        seconds: median [s]
        low: lower end of the interval [s]
        high: upper end of the interval [s]
        source: "measured", "interpolated", "calibrated", "analytic" or "published", and a word on how after a colon
    """

    seconds: float
    low: float
    high: float
    source: str

    def scaled(self, factor: float) -> "Cost":
        """The same cost, `factor` times as long."""
        return Cost(self.seconds * factor, self.low * factor, self.high * factor, self.source)

    def at(self, end: IntervalEnd) -> "Cost":
        """The cost whose median is at an end of the interval."""
        return replace(self, seconds=getattr(self, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Durations of one operation at one batch size.

    Attributes:
        forward: of its forward
        backward: of its backward
        launches: share of both that kernel launches take; a part of the operation has the launches of the whole; 0
            where it is not known [0..1]
        complete: of an operation with many parameters, such as a model that could not be captured, the fraction of its
            backward after which the gradient of each is complete, in the order of `Op.parameters`; empty: all of them
            at its end, or not known [0..1]
    """

    forward: Cost
    backward: Cost
    launches: float = 0.0
    complete: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """How much slower things get side by side on one rank; 1 is no slowdown.

    Attributes:
        compute: factor on the time of compute while communication or a copy runs
        communication: factor on the time in which bytes of communication or a copy flow, while compute runs
        latency: factor on the latency of communication while compute runs: where all cores compute, a thread of the
            library waits for one
        source: where the factors come from
    """

    compute: float = 1.0
    communication: float = 1.0
    latency: float = 1.0
    source: str = "assumed: none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What a step has besides its instructions, where the host computes.

    Attributes:
        step: of a rank's thread, between the last instruction of a step and the first one of the next
        instruction: of a rank's thread, between two instructions of a step
        straggling: wait for the slowest rank of a step, as a share of the compute of a typical one
    """

    step: Cost
    instruction: Cost
    straggling: float = 0.0

    def of(self, instructions: int) -> float:
        """All of it in a step of a number of instructions [s].

        Example:
            >>> each = Cost(0.5, 0.5, 0.5, "example")
            >>> Between(step=Cost(4.0, 4.0, 4.0, "example"), instruction=each).of(3)
            5.0
        """
        return self.step.seconds + max(0, instructions - 1) * self.instruction.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Cost of a send, a receive or a collective when no other transfer runs.

    A transfer takes `latency_s`, which `Interference` may lengthen, then its bytes flow. Transfers under way on one
    link at the same time share it: with k of them, each advances at 1/k of its speed.

    Attributes:
        latency_s: part that no other transfer lengthens [s]
        flow_s: part during which bytes flow, alone on its links [s]
        links: names of the links that it occupies
        low: lower end of the 90 % interval of the sum [s]
        high: upper end of the 90 % interval of the sum [s]
        source: where the figures come from
    """

    latency_s: float
    flow_s: float
    links: tuple[str, ...]
    low: float
    high: float
    source: str

    @property
    def seconds(self) -> float:
        """Time of the whole transfer [s]."""
        return self.latency_s + self.flow_s

    @property
    def ends(self) -> tuple[float, float, float]:
        """The interval with the median inside [s, s, s]."""
        return self.low, self.seconds, self.high

    @property
    def flow_share(self) -> float:
        """The share of its time during which bytes flow [0..1]."""
        return self.flow_s / self.seconds if self.seconds else 0.0

    def at(self, end: IntervalEnd) -> "Transfer":
        """The transfer with both of its parts at an end of the interval."""
        factor = getattr(self, end) / self.seconds if self.seconds else 1.0
        return replace(self, latency_s=self.latency_s * factor, flow_s=self.flow_s * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondSum:
    """Where an instruction goes on with a collective of two sums: two marks that the program does not have.

    Attributes:
        instruction: by id
        before: the mark of the program in front of which the two are, also where all three are at one place
        pause: name of the mark at which the instruction blocks until the first sum has ended
        start: name of the mark at which it has made the terms of the second sum, and starts that
    """

    instruction: str
    before: str
    pause: str
    start: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondRound:
    """The second sum of a collective that has two, whose terms each rank makes out of the first one.

    Attributes:
        between: work of a rank's thread on the first sum before it starts the second; nothing where an instruction
            does that during its own time, at `second_sum`
        transfer: the second sum
        second_sum: where that is; None: a rank starts the second sum before anything that names the collective
    """

    between: Cost
    transfer: Transfer
    second_sum: SecondSum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCosts:
    """Costs of a program's instructions that the simulator reads.

    Attributes:
        compute: duration of each instruction that is not communication, by instruction id
        transfers: each communication instruction, by instruction id; the two ends of a message, and the members of a
            collective, have equal entries
        marks: for each `(instruction id, mark name)`, the fraction of the instruction after which the mark is reached;
            those of second sums are among them [0..1]
        handling: for a communication instruction, how long its rank's thread works for it before it starts; counts
            where `host_blocks` [s]
        decoding: for a collective whose result is encoded, how long each of its ranks works on it once it has ended,
            before anything that names it starts
        second_rounds: for a collective of two sums, by id, the round after the first one, which is in `transfers`
        interference: slowdown of compute and communication side by side
        at_once: collectives of one group that are under way at once: they wait in the order of their issue for this
            number of workers, so each starts when any of those under way has ended
        host_blocks: an instruction runs on the host that issues the ones after it (a CPU), so nothing later in the
            rank's list is issued before compute ends; False where a host runs ahead of its device (a GPU)
        resident_bytes: for each rank, parameters, gradients and optimizer state [bytes]
        memory: for each instruction id, bytes that live from its start on and bytes that die at its end
        period: lower bound on the step time by the input pipeline; None: it has none
        between_s: for each rank, what its thread does in a step that no instruction shows: copies of gradients into
            the buffers of calls and out of them, on a machine of the catalog; all that is between instructions, where
            that was measured [s]
        straggling: wait for the slowest rank at the end of a step, as a share of the longest compute of a rank
    """

    compute: Mapping[str, Cost]
    transfers: Mapping[str, Transfer] = field(default_factory=dict)
    marks: Mapping[tuple[str, str], float] = field(default_factory=dict)
    handling: Mapping[str, float] = field(default_factory=dict)
    decoding: Mapping[str, Cost] = field(default_factory=dict)
    second_rounds: Mapping[str, SecondRound] = field(default_factory=dict)
    interference: Interference = Interference()
    at_once: int = 1
    host_blocks: bool = True
    resident_bytes: tuple[int, ...] = ()
    memory: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    period: Cost | None = None
    between_s: tuple[float, ...] = ()
    straggling: float = 0.0


def add(costs: Iterable[Cost], *, source: str | None = None) -> Cost:
    """The sum of costs whose errors are independent.

    Args:
        costs: the terms
        source: of the sum; None: that of the longest term

    Returns:
        The sum; 0 for no terms.

    Example:
        >>> add([Cost(10.0, 7.0, 13.0, "measured"), Cost(5.0, 1.0, 9.0, "measured")])
        Cost(seconds=15.0, low=10.0, high=20.0, source='measured')
    """
    terms = list(costs)
    seconds = math.fsum(term.seconds for term in terms)
    below = math.hypot(*(term.seconds - term.low for term in terms))
    above = math.hypot(*(term.high - term.seconds for term in terms))
    longest = max(terms, key=lambda term: term.seconds, default=None)
    if source is None:
        source = longest.source if longest else "measured"
    return Cost(seconds, max(0.0, seconds - below), seconds + above, source)


def multiply(cost: Cost, factor: Cost) -> Cost:
    """A cost times a factor whose error is independent of the cost's.

    Args:
        cost: duration
        factor: the factor [1], with its interval

    Example:
        >>> multiply(Cost(10.0, 7.0, 13.0, "measured"), Cost(2.0, 1.2, 2.8, "measured"))
        Cost(seconds=20.0, low=10.0, high=30.0, source='measured')
    """
    seconds = cost.seconds * factor.seconds
    below = math.hypot((cost.seconds - cost.low) * factor.seconds, (factor.seconds - factor.low) * cost.seconds)
    above = math.hypot((cost.high - cost.seconds) * factor.seconds, (factor.high - factor.seconds) * cost.seconds)
    return Cost(seconds, max(0.0, seconds - below), seconds + above, cost.source)


def divide(cost: Cost, seconds: float) -> Cost:
    """A cost as a multiple of a reference duration; 1 where the reference is 0 s.

    Args:
        cost: duration
        seconds: the reference [s]

    Returns:
        The ratio [1], with its interval.
    """
    return cost.scaled(1.0 / seconds) if seconds > 0 else Cost(1.0, 1.0, 1.0, "assumed: nothing to compare with")
