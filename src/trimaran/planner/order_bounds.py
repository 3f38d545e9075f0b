"""When the stages of a pipeline end their last step at the earliest: its schedule played with links that nobody shares.

Each stage does its steps in the order of the schedule, each once its inputs are there. The messages from one segment to
another follow each other over links that nothing else uses, and what a rank does besides (loads, updates, exchanges of
gradients) takes no time. So nothing here is later than in a simulation, and each wait for a message is counted, such as
that of a stage in 1F1B for the backward that lets it go on.

The durations are those of the first microbatch, which stands for all.
"""

import functools
from collections.abc import Mapping, Sequence

from trimaran.program.lowering.schedules import compute_order
from trimaran.program.strategy import Schedule, Strategy
from trimaran.program.types import Kind

_Route = tuple[int, int]


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
