"""Orders of compute of a placement: a directed acyclic graph of parts on the rows of a replica.

One microbatch: each row runs its forwards in the order in which the strategy lists the parts, and its backwards in the
strategy's order of backwards. Several microbatches: the rows are played against each other by list scheduling. A row
that is free takes what is ready, backwards first and earlier microbatches first; it starts no forward of a microbatch
while as many others as there are rows are under way on it, so that it keeps the activations of no more.

How long steps take is only estimated here, from operations and bytes, because the order must follow from the graph and
the strategy alone: every rank lowers the same program. What is left out: the time of messages.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from trimaran.graph.types import Op
from trimaran.program.cut import Cut
from trimaran.program.orders import Compute, Order
from trimaran.program.types import Kind, Strategy

FLOPS_PER_BYTE = 10.0
"""Operations in the time of a byte: between a processor core's balance and a GPU's. It only decides orders."""


def placement_order(strategy: Strategy, cut: Cut, lengths: Mapping[Compute, float]) -> Order:
    """The order of compute of a training step.

    Args:
        strategy: with parts
        cut: its graph in these parts
        lengths: how long each step takes [units]

    Returns:
        One row a rank of a replica.
    """
    if strategy.microbatches == 1:
        back = backward_order(strategy)
        return tuple(
            tuple(
                Compute(kind, segment, 0)
                for kind, segments in ((Kind.FORWARD, range(len(strategy.rows))), (Kind.BACKWARD, back))
                for segment in segments
                if strategy.rows[segment] == row
            )
            for row in range(strategy.pp)
        )
    return _scheduled(strategy, cut, lengths)


def evaluation_order(strategy: Strategy) -> Order:
    """The order of the forwards of an evaluation: microbatch by microbatch, each in the order of the segments."""
    return tuple(
        tuple(
            Compute(Kind.EVALUATE, segment, microbatch)
            for microbatch in range(strategy.microbatches)
            for segment, owner in enumerate(strategy.rows)
            if owner == row
        )
        for row in range(strategy.pp)
    )


def backward_order(strategy: Strategy) -> tuple[int, ...]:
    """The segments in the order of their backwards."""
    return strategy.backward_order or tuple(reversed(range(strategy.segments)))


def step_lengths(parts: Sequence[Sequence[Op]], *, microbatches: int, samples: int) -> dict[Compute, float]:
    """How long the steps of segments take, roughly, in proportion to each other [units].

    Args:
        parts: the operations of each segment
        microbatches: of a replica
        samples: of a microbatch
    """
    lengths: dict[Compute, float] = {}
    for segment, ops in enumerate(parts):
        forward = sum(op.flops.at(samples) + FLOPS_PER_BYTE * op.bytes_moved.at(samples) for op in ops)
        backward = sum(
            op.backward_flops.at(samples) + FLOPS_PER_BYTE * op.backward_bytes_moved.at(samples) for op in ops
        )
        for microbatch in range(microbatches):
            for kind, length in (
                (Kind.FORWARD, forward),
                (Kind.EVALUATE, forward),
                (Kind.BACKWARD, backward),
                (Kind.BACKWARD_INPUT, backward / 2),
                (Kind.BACKWARD_WEIGHT, backward / 2),
            ):
                lengths[Compute(kind, segment, microbatch)] = length
    # Where nothing is known of any operation, all steps are alike.
    return lengths if any(lengths.values()) else dict.fromkeys(lengths, 1.0)


def _scheduled(strategy: Strategy, cut: Cut, lengths: Mapping[Compute, float]) -> Order:
    rows = strategy.rows
    waits, followers = _dependencies(strategy, cut)
    rank_of = {segment: place for place, segment in enumerate(backward_order(strategy))}
    under_way = [dict[int, int]() for _ in range(strategy.pp)]
    held: list[int] = [rows.count(row) for row in range(strategy.pp)]
    order: list[list[Compute]] = [[] for _ in range(strategy.pp)]
    ready: list[list[tuple[int, int, int, Compute]]] = [[] for _ in range(strategy.pp)]

    def offer(step: Compute) -> None:
        back = step.kind is Kind.BACKWARD
        place = rank_of[step.segment] if back else step.segment
        heappush(ready[rows[step.segment]], (not back, step.microbatch, place, step))

    def take(row: int) -> Compute | None:
        if not ready[row]:
            return None
        step = ready[row][0][3]
        mine = under_way[row]
        if step.kind is Kind.FORWARD and step.microbatch not in mine and len(mine) >= strategy.pp:
            return None
        return heappop(ready[row])[3]

    for step in (step for step, count in waits.items() if not count):
        offer(step)
    running: list[tuple[float, int, Compute]] = []
    busy = [False] * strategy.pp
    now = 0.0
    while True:
        for row in range(strategy.pp):
            taken = None if busy[row] else take(row)
            if taken is not None:
                busy[row] = True
                order[row].append(taken)
                under_way[row].setdefault(taken.microbatch, 2 * held[row])
                heappush(running, (now + lengths[taken], row, taken))
        if not running:
            return tuple(map(tuple, order))
        now, row, step = heappop(running)
        busy[row] = False
        under_way[row][step.microbatch] -= 1
        if not under_way[row][step.microbatch]:
            del under_way[row][step.microbatch]
        for follower in followers[step]:
            waits[follower] -= 1
            if not waits[follower]:
                offer(follower)


def _dependencies(strategy: Strategy, cut: Cut) -> tuple[dict[Compute, int], dict[Compute, list[Compute]]]:
    """For each step, how many it waits for, and which wait for it."""
    steps = [
        Compute(kind, segment, microbatch)
        for microbatch in range(strategy.microbatches)
        for kind in (Kind.FORWARD, Kind.BACKWARD)
        for segment in range(strategy.segments)
    ]
    waits = dict.fromkeys(steps, 0)
    followers: dict[Compute, list[Compute]] = {step: [] for step in steps}
    for microbatch in range(strategy.microbatches):
        for first, second in _pairs(strategy.segments, cut, microbatch):
            waits[second] += 1
            followers[first].append(second)
    return waits, followers


def _pairs(segments: int, cut: Cut, microbatch: int) -> Iterable[tuple[Compute, Compute]]:
    for segment in range(segments):
        yield Compute(Kind.FORWARD, segment, microbatch), Compute(Kind.BACKWARD, segment, microbatch)
    for producer, consumer in cut.forward:
        yield Compute(Kind.FORWARD, producer, microbatch), Compute(Kind.FORWARD, consumer, microbatch)
    for producer, consumer in cut.backward:
        yield Compute(Kind.BACKWARD, consumer, microbatch), Compute(Kind.BACKWARD, producer, microbatch)
