"""When the stages of a pipeline end their last step at the earliest: its schedule played with links that nobody shares.

Each stage does its steps in the order of the schedule, each once its inputs are there. The messages from one segment to
another follow each other over links that nothing else uses, and what a rank does besides (loads, updates, exchanges of
gradients) takes no time. So nothing here is later than in a simulation, and each wait for a message is counted, such as
that of a stage in 1F1B for the backward that lets it go on.

The durations are those of the first microbatch, which stands for all.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.pricing.types import ProgramCosts
from trimaran.program.lowering.schedules import compute_order
from trimaran.program.strategy import Schedule, Strategy
from trimaran.program.types import Instruction, Kind, Program

Ends = tuple[float, float, float]
"""With all costs low, at their median, and high [s]."""

_Route = tuple[int, int]
_STEPS = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
_LAST = (Kind.CLIP, Kind.UPDATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchChain:
    """What the first microbatch takes on one device of each row of a replica, each as if nothing else ran.

    Attributes:
        steps: of each kind of step, by its segment
        sent: a message of activations, by the segments that send and read it
        returned: a message of gradients, likewise
        tails: clipping and update, by row
    """

    steps: Mapping[tuple[Kind, int], Ends]
    sent: Mapping[_Route, Ends]
    returned: Mapping[_Route, Ends]
    tails: Sequence[Ends]

    def least_s(self, strategy: Strategy, end: int) -> float:
        """Lower bound on a step [s].

        Args:
            strategy: its degrees and its schedule
            end: of the intervals: 0, 1 or 2
        """
        ends = earliest_ends(
            strategy,
            {key: seconds[end] for key, seconds in self.steps.items()},
            {route: seconds[end] for route, seconds in self.sent.items()},
            {route: seconds[end] for route, seconds in self.returned.items()},
        )
        return max(ended_s + tail[end] for ended_s, tail in zip(ends, self.tails, strict=True))


def chain_of(program: Program, costs: ProgramCosts, strategy: Strategy) -> MicrobatchChain | None:
    """What a microbatch takes on the first replica; None where no schedule says all that its stages do.

    Args:
        program: a training step of the strategy, with at least one of its microbatches
        costs: of it
        strategy: its degrees and its schedule
    """
    factors = costs.interference
    if strategy.pp == 1 or strategy.parts or strategy.is_stale or min(factors.compute, factors.communication) < 1.0:
        return None
    steps: dict[tuple[Kind, int], Ends] = {}
    sent: dict[_Route, Ends] = {}
    returned: dict[_Route, Ends] = {}
    tails = []
    for rank in range(0, strategy.pp * program.tp, program.tp):
        tail = [busy_s(item, costs) for item in program.ranks[rank] if item.kind in _LAST]
        tails.append((sum(one[0] for one in tail), sum(one[1] for one in tail), sum(one[2] for one in tail)))
        for item in program.ranks[rank]:
            if item.microbatch != 0 or item.segment is None:
                continue
            if item.kind in _STEPS:
                steps[item.kind, item.segment] = busy_s(item, costs)
            elif item.peer_segment is not None and item.kind is Kind.RECEIVE_FORWARD:
                sent[item.peer_segment, item.segment] = costs.transfers[item.id].ends
            elif item.peer_segment is not None and item.kind is Kind.RECEIVE_BACKWARD:
                returned[item.peer_segment, item.segment] = costs.transfers[item.id].ends
    return MicrobatchChain(steps=steps, sent=sent, returned=returned, tails=tails)


def busy_s(item: Instruction, costs: ProgramCosts) -> Ends:
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


def earliest_ends(
    strategy: Strategy,
    steps_s: Mapping[tuple[Kind, int], float],
    sent_s: Mapping[_Route, float],
    returned_s: Mapping[_Route, float],
) -> tuple[float, ...]:
    """When each row has ended its last step at the earliest [s].

    Args:
        strategy: its degrees and its schedule, a chain of stages
        steps_s: time of each kind of step, by segment [s]; a kind that is missing takes none
        sent_s: time of a message of activations, by the segments that send and read it [s]
        returned_s: time of a message of gradients, likewise [s]

    Example:
        Two stages, two microbatches, forwards of 1 s, backwards of 2 s and messages of 1 s. The second starts after
        2 s, has the second input after 3 s, and computes for 6 s; the first gets the last gradient 1 s later.

        >>> steps = {(kind, stage): s for kind, s in ((Kind.FORWARD, 1.0), (Kind.BACKWARD, 2.0)) for stage in (0, 1)}
        >>> earliest_ends(Strategy(pp=2, microbatches=2, schedule="1f1b"), steps, {(0, 1): 1.0}, {(1, 0): 1.0})
        (11.0, 8.0)
    """
    order = _coded(strategy.schedule, strategy.pp, strategy.microbatches, strategy.chunks)
    read_from = _by_reader(sent_s)
    back_from = _by_reader(returned_s)
    count = strategy.microbatches
    forwards: dict[int, float] = {}
    gradients: dict[int, float] = {}
    free: dict[_Route, float] = {}
    clock = [0.0] * len(order)
    reached = [0] * len(order)
    moved = True
    while moved:
        moved = False
        for row, steps in enumerate(order):
            now_s = clock[row]
            position = reached[row]
            while position < len(steps):
                kind, segment, microbatch = steps[position]
                if kind is Kind.FORWARD:
                    known, routes, back = forwards, read_from.get(segment, ()), False
                elif kind is Kind.BACKWARD_WEIGHT:
                    known, routes, back = gradients, (), False
                else:
                    known, routes, back = gradients, back_from.get(segment, ()), True
                if any(source * count + microbatch not in known for source, _ in routes):
                    break
                for source, message_s in routes:
                    channel = (~source, segment) if back else (source, segment)
                    there_s = max(known[source * count + microbatch], free.get(channel, 0.0)) + message_s
                    free[channel] = there_s
                    now_s = max(now_s, there_s)
                now_s += steps_s.get((kind, segment), 0.0)
                if kind is Kind.FORWARD:
                    forwards[segment * count + microbatch] = now_s
                elif kind is not Kind.BACKWARD_WEIGHT:
                    gradients[segment * count + microbatch] = now_s
                position += 1
                moved = True
            clock[row], reached[row] = now_s, position
    return tuple(clock)


def _by_reader(messages_s: Mapping[_Route, float]) -> dict[int, list[tuple[int, float]]]:
    """For each segment, those whose messages it reads, with their times [s]."""
    found: dict[int, list[tuple[int, float]]] = {}
    for (source, reader), seconds in messages_s.items():
        found.setdefault(reader, []).append((source, seconds))
    return found


@functools.lru_cache(maxsize=64)
def _coded(
    schedule: Schedule, stages: int, microbatches: int, chunks: int
) -> Sequence[Sequence[tuple[Kind, int, int]]]:
    order = compute_order(schedule, stages=stages, microbatches=microbatches, chunks=chunks)
    return tuple(tuple((step.kind, step.segment, step.microbatch) for step in steps) for steps in order)
