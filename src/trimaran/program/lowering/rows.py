"""Loads, messages and reductions around the steps of one row of a pipeline; the same in every replica."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from trimaran.graph.types import Graph, Op
from trimaran.program.gradients import Bucket, gradient_buckets
from trimaran.program.lowering.messages import (
    Message,
    channel_order,
    messages,
    receive_positions,
    send_positions,
)
from trimaran.program.lowering.partition import Partition, routes_of, segment_ops, tied_segments
from trimaran.program.lowering.schedules import BACKWARDS, COMPLETING, FORWARDS, Clock, Compute, Order
from trimaran.program.lowering.tensor_parallel import gradient_sums, own_parameters, tensor_collectives
from trimaran.program.lowering.zero import Handed, after_update, bucket_reduction, zero_collectives
from trimaran.program.strategy import Strategy
from trimaran.program.types import ComputePoint, Inner, Instruction, Kind, Mark

# ---------------------------------------------------------------------------------------------------------------------
# The collectives inside the steps of a row, in the order in which the steps pass them


def row_inners(
    graph: Graph,
    strategy: Strategy,
    partition: Partition,
    steps: Sequence[Compute],
    completing: Mapping[int, Compute],
) -> dict[Compute, tuple[Inner, ...]]:
    """The collectives inside each step of a row.

    Args:
        graph: the network
        strategy: what is sharded
        partition: the graph, in the segments of the strategy
        steps: of the row, in order
        completing: for each segment, its last step that adds to gradients

    Returns:
        For each step that has any, its collectives in the order in which it starts them.
    """
    if strategy.dp == 1 and strategy.tp == 1:
        return {}
    seen: set[tuple[Kind, int]] = set()
    made: dict[tuple[Kind, int, bool, bool], tuple[Inner, ...]] = {}
    found = {}
    for step in steps:
        first = (step.kind, step.segment) not in seen
        seen.add((step.kind, step.segment))
        key = step.kind, step.segment, first, completing.get(step.segment) == step
        if key not in made:
            made[key] = _step_inners(graph, strategy, partition, *key)
        if made[key]:
            found[step] = made[key]
    return found


Passed = TypeVar("Passed")


def in_order(
    found: Iterable[Passed], ops: Sequence[Op], at: Callable[[Passed], ComputePoint | Mark], *, backward: bool
) -> tuple[Passed, ...]:
    """Marks or collectives in the order in which a step passes their points; those of one point as they were.

    Args:
        found: of the step
        ops: operations of its segment, in order
        at: where each is
        backward: the step runs the operations in reverse
    """
    place = {op.id: -number if backward else number for number, op in enumerate(ops)}
    return tuple(sorted(found, key=lambda one: (place[at(one).op], not at(one).before)))


def _step_inners(
    graph: Graph, strategy: Strategy, partition: Partition, kind: Kind, segment: int, first: bool, last: bool
) -> tuple[Inner, ...]:
    ops = partition.parts[segment]
    found = [
        *tensor_collectives(graph, ops, strategy, samples=partition.microbatch, kind=kind),
        *zero_collectives(graph, ops, strategy, kind=kind, first=first, last=last),
    ]
    return in_order(found, ops, lambda inner: inner.start, backward=kind in BACKWARDS)


# ---------------------------------------------------------------------------------------------------------------------
# The buckets of gradients of one rank, by segment


def rank_buckets(
    graph: Graph,
    strategy: Strategy,
    parts: Sequence[Sequence[Op]],
    completing: Sequence[int],
    *,
    tied: Mapping[str, Collection[int]],
    sizes: Mapping[str, int] | None = None,
) -> dict[int, tuple[Bucket, ...]]:
    """Buckets of the segments of a rank; a weight that two of them share is complete with the later one.

    Args:
        graph: the job
        strategy: how replicas stay alike, and how large a bucket is
        parts: the operations of each segment
        completing: the segments that are trained here, in the order in which their gradients are complete
        tied: for each parameter that several segments use, those segments
        sizes: bytes that a rank holds of parameters of which it may hold a share; None: all are whole
    """
    if bucket_reduction(strategy) is None:
        return dict.fromkeys(completing, ())
    taken = set(own_parameters(graph, strategy))
    buckets = {}
    for segment in reversed(completing):
        buckets[segment] = gradient_buckets(
            graph,
            parts[segment],
            strategy.bucket_bytes,
            without=taken,
            sizes=sizes,
            compression=strategy.compression,
        )
        taken.update(name for name, users in tied.items() if segment in users)
    return buckets


def buckets_of_rank(
    graph: Graph, strategy: Strategy, instructions: Sequence[Instruction]
) -> dict[int, tuple[Bucket, ...]]:
    """Buckets of each segment that a rank trains.

    Args:
        graph: the job
        strategy: what was decided
        instructions: of the rank
    """
    parts = segment_ops(graph, strategy)
    last = {
        item.segment: position
        for position, item in enumerate(instructions)
        if item.kind in COMPLETING and item.segment is not None
    }
    return rank_buckets(graph, strategy, parts, sorted(last, key=last.__getitem__), tied=tied_segments(graph, parts))


def buckets_by_token(graph: Graph, strategy: Strategy, instructions: Sequence[Instruction]) -> dict[str, Bucket]:
    """The bucket of each all-reduce of gradients of a rank, by the token of the all-reduce.

    Args:
        graph: the job
        strategy: that the program was lowered from; whole tensors on each rank
        instructions: of the rank
    """
    found = buckets_of_rank(graph, strategy, instructions)
    return {f"{segment}{Kind.ALL_REDUCE}#{bucket.label}": bucket for segment, some in found.items() for bucket in some}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSteps:
    """The steps of a row and what stands around each.

    Attributes:
        steps: its steps of compute
        received: for each step, the messages that are received before it in the list
        sent: for each step, the messages that are sent after it in the list
        needed: for each step, the messages that it waits for
        data: names of the tensors of a batch that the row reads
        completing: for each segment that is trained here, its last step that adds to gradients
        buckets: for each of those segments, its gradient buckets
        inners: for each step, the collectives inside it
        sums: labels and sizes [bytes] of gradients that the ranks sharing its tensors add up after the last backward
        handed: for each of those segments, what replicas hand out after the update
        mean: the all-reduce of losses or metrics is listed after this step; -1: before the first
    """

    steps: tuple[Compute, ...]
    received: tuple[tuple[Message, ...], ...]
    sent: tuple[tuple[Message, ...], ...]
    needed: tuple[tuple[Message, ...], ...]
    data: tuple[str, ...]
    completing: Mapping[int, Compute]
    buckets: Mapping[int, tuple[Bucket, ...]]
    inners: Mapping[Compute, tuple[Inner, ...]]
    sums: tuple[tuple[str, int], ...]
    handed: Mapping[int, tuple[Handed, ...]]
    mean: int

    @property
    def segments(self) -> tuple[int, ...]:
        """The segments of the row, ascending."""
        return tuple(sorted({step.segment for step in self.steps}))

    def bucket_of(self, parameter: str) -> tuple[int, Bucket] | None:
        """The segment and bucket that reduce a parameter; None where no bucket does."""
        for segment, buckets in self.buckets.items():
            for bucket in buckets:
                if parameter in bucket.parameters:
                    return segment, bucket
        return None


def plan_rows(
    graph: Graph, strategy: Strategy, partition: Partition, order: Order, clock: Clock
) -> tuple[RowSteps, ...]:
    """Put loads, messages and reductions around the steps of an order.

    Args:
        graph: the job
        strategy: says which row has which segment, and how replicas stay alike
        partition: the graph, in the segments of the strategy
        order: one row of steps a rank
        clock: when the steps run

    Returns:
        One row for each row of the order.
    """
    starts, rows = clock.starts, strategy.rows
    sent = messages(order, routes_of(graph, partition.parts, rows), rows, starts, samples=partition.microbatch)
    if clock.lengths is not None:
        sent = channel_order(order, sent, clock.lengths)
    before = [[list[Message]() for _ in steps] for steps in order]
    for message, position in zip(sent, receive_positions(order, sent, clock), strict=True):
        before[message.target][position].append(message)
    after = [[list[Message]() for _ in steps] for steps in order]
    needed: dict[Compute, list[Message]] = {}
    for message, position in zip(sent, send_positions(order, sent), strict=True):
        after[message.source][position].append(message)
        for step in message.consumers:
            needed.setdefault(step, []).append(message)
    scoring = [step for step in order[rows[partition.loss]] if step.kind in FORWARDS and step.segment == partition.loss]
    last = max(scoring, key=starts.__getitem__)
    planned = []
    for steps, received, made in zip(order, before, after, strict=True):
        completing = {step.segment: step for step in steps if step.kind in COMPLETING}
        buckets = _buckets(graph, strategy, partition, steps, completing)
        planned.append(
            RowSteps(
                steps=steps,
                received=tuple(map(tuple, received)),
                sent=tuple(map(tuple, made)),
                needed=tuple(tuple(needed.get(step, ())) for step in steps),
                data=tuple(
                    name for name in partition.data_bytes if any(name in partition.data[step.segment] for step in steps)
                ),
                completing=completing,
                buckets=buckets,
                inners=row_inners(graph, strategy, partition, steps, completing),
                sums=_sums(graph, strategy, partition, completing),
                handed={
                    segment: after_update(graph, partition.parts[segment], strategy, found)
                    for segment, found in buckets.items()
                },
                mean=sum(starts[step] <= starts[last] for step in steps) - 1,
            )
        )
    return tuple(planned)


def _sums(
    graph: Graph, strategy: Strategy, partition: Partition, completing: Mapping[int, Compute]
) -> tuple[tuple[str, int], ...]:
    ops = [op for segment in sorted(completing) for op in partition.parts[segment]]
    return tuple((label, nbytes) for label, _, nbytes in gradient_sums(graph, ops, strategy))


def _buckets(
    graph: Graph, strategy: Strategy, partition: Partition, steps: Sequence[Compute], completing: Mapping[int, Compute]
) -> dict[int, tuple[Bucket, ...]]:
    """Buckets of each segment of a row."""
    position = {step: index for index, step in enumerate(steps)}
    order = sorted(completing, key=lambda segment: position[completing[segment]])
    return rank_buckets(graph, strategy, partition.parts, order, tied=partition.tied, sizes=partition.parameter_bytes)
