"""Costs with their uncertainty, and what the simulator needs to know of a program.

Formulas inside this package return plain floats in SI units. What leaves it is a `Cost`: a median, a 90 % interval
and a source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Durations of one operation at one batch size.

    Attributes:
        forward: of its forward
        backward: of its backward
        launches: share of both that starting kernels takes, of which a part of the operation has as many; 0 where
            nobody tells it apart [0..1]
    """

    forward: Cost
    backward: Cost
    launches: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """How much slower things get side by side on one rank; 1 is no slowdown.

    Attributes:
        compute: factor on the time of compute while communication or a copy runs
        communication: factor on the time of communication or a copy while compute runs
        source: where the factors come from
    """

    compute: float = 1.0
    communication: float = 1.0
    source: str = "assumed: none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What a send, a receive or a collective costs when nothing else is under way.

    A transfer takes `latency_s`, then its bytes flow. Transfers that are under way on the same link at the same time
    share it: with k of them, each advances at 1/k of its own speed.

    Attributes:
        latency_s: part that no sharing lengthens [s]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where an instruction goes on with a collective of two sums: two marks that the program does not have.

    Attributes:
        instruction: by id
        before: the mark of the program in front of which the two are, also where all three are at one place
        pause: name of the mark at which the instruction stands still until the first sum has ended
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
        between: what a rank's thread does with the first sum before it starts the second; nothing where an instruction
            has that in its own time, in a turn
        transfer: the second sum
        turn: where that is; None: a rank starts the second sum before anything that names the collective
    """

    between: Cost
    transfer: Transfer
    turn: Turn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCosts:
    """Everything that the simulator has to know of a program's instructions.

    Attributes:
        compute: duration of each instruction that is not communication, by instruction id
        transfers: each communication instruction, by instruction id; the two ends of a message, and the members of a
            collective, have equal entries
        marks: for each `(instruction id, mark name)`, the fraction of the instruction after which the mark is reached;
            those of turns are among them [0..1]
        handling: for a communication instruction, how long its rank's thread works for it before it starts; counts
            where `host_blocks` [s]
        decoding: for a collective whose result is encoded, how long each of its ranks works on it once it has ended,
            before anything that names it starts
        second_rounds: for a collective of two sums, by id, what follows the first one, which is in `transfers`
        interference: slowdown of compute and communication side by side
        at_once: collectives of one group that are under way at once: they wait in the order of their issue for so many
            workers, so each starts when any of those under way has ended
        host_blocks: an instruction runs on the host that issues the ones after it (a CPU), so nothing later in the
            rank's list is issued before compute ends; False where a host runs ahead of its device (a GPU)
        resident_bytes: for each rank, what is there all the time: parameters, gradients, optimizer state [bytes]
        memory: for each instruction id, bytes that live from its start on and bytes that die at its end
        period: the time below which no step comes, because data are not made more often; None: they are
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
