"""What one row of a pipeline does around its steps of compute; the same in every replica."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.graph.types import Graph
from trimaran.program.buckets import Bucket
from trimaran.program.channels import channel_order, send_positions
from trimaran.program.clock import Clock
from trimaran.program.cut import Cut, bytes_of, carried
from trimaran.program.inner import Inner
from trimaran.program.orders import Compute, Order
from trimaran.program.reduced import COMPLETING, rank_buckets
from trimaran.program.sharded import gradient_sums
from trimaran.program.traffic import FORWARDS, Message, Route, messages, receive_positions
from trimaran.program.types import Strategy
from trimaran.program.within import row_inners
from trimaran.program.zero import Handed, after_update


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The steps of a row and what stands around each.

    Attributes:
        steps: its steps of compute
        received: for each step, the messages that are received before it in the list
        sent: for each step, the messages that are sent after it in the list
        needed: for each step, the messages that it waits for
        data: names of the tensors of a batch that the row reads
        loaded: for each step that reads a microbatch first, True
        fed: for each step, whether it reads a tensor of the batch
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
    loaded: tuple[bool, ...]
    fed: tuple[bool, ...]
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


def routes_of(graph: Graph, cut: Cut, rows: Sequence[int]) -> tuple[Route, ...]:
    """What goes from each segment to each other row.

    Args:
        graph: the job
        cut: the graph, in segments
        rows: row of each segment
    """
    return tuple(
        Route(
            producer=producer,
            consumer=consumer,
            readers=readers,
            forward_bytes=bytes_of(specs, cut.microbatch),
            backward_bytes=bytes_of([spec for spec in specs if spec.requires_grad], cut.microbatch),
        )
        for (producer, consumer), (specs, readers) in carried(graph, cut.parts, rows).items()
    )


def plan_rows(graph: Graph, strategy: Strategy, cut: Cut, order: Order, clock: Clock) -> tuple[Row, ...]:
    """Put loads, messages and reductions around the steps of an order.

    Args:
        graph: the job
        strategy: says which row has which segment, and how replicas stay alike
        cut: the graph, in the segments of the strategy
        order: one row of steps a rank
        clock: when the steps run

    Returns:
        One row for each row of the order.
    """
    starts, rows = clock.starts, strategy.rows
    sent = messages(order, routes_of(graph, cut, rows), rows, starts)
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
    scoring = [step for step in order[rows[cut.loss]] if step.kind in FORWARDS and step.segment == cut.loss]
    last = max(scoring, key=starts.__getitem__)
    planned = []
    for steps, received, made in zip(order, before, after, strict=True):
        fed = tuple(_reads_batch(step, cut) for step in steps)
        completing = {step.segment: step for step in steps if step.kind in COMPLETING}
        buckets = _buckets(graph, strategy, cut, steps, completing)
        planned.append(
            Row(
                steps=steps,
                received=tuple(map(tuple, received)),
                sent=tuple(map(tuple, made)),
                needed=tuple(tuple(needed.get(step, ())) for step in steps),
                data=tuple(name for name in cut.data_bytes if any(name in cut.data[step.segment] for step in steps)),
                loaded=_first_uses(steps, fed),
                fed=fed,
                completing=completing,
                buckets=buckets,
                inners=row_inners(graph, strategy, cut, steps, completing),
                sums=_sums(graph, strategy, cut, completing),
                handed={
                    segment: after_update(graph, cut.parts[segment], strategy, found)
                    for segment, found in buckets.items()
                },
                mean=sum(starts[step] <= starts[last] for step in steps) - 1,
            )
        )
    return tuple(planned)


def _sums(graph: Graph, strategy: Strategy, cut: Cut, completing: Mapping[int, Compute]) -> tuple[tuple[str, int], ...]:
    found = (total for segment in sorted(completing) for total in gradient_sums(graph, cut.parts[segment], strategy))
    return tuple((label, nbytes) for label, _, nbytes in found)


def _reads_batch(step: Compute, cut: Cut) -> bool:
    return step.kind in FORWARDS and bool(cut.data[step.segment])


def _first_uses(steps: Sequence[Compute], fed: Sequence[bool]) -> tuple[bool, ...]:
    seen: set[int] = set()
    first = []
    for step, reads in zip(steps, fed, strict=True):
        first.append(reads and step.microbatch not in seen)
        if reads:
            seen.add(step.microbatch)
    return tuple(first)


def _buckets(
    graph: Graph, strategy: Strategy, cut: Cut, steps: Sequence[Compute], completing: Mapping[int, Compute]
) -> dict[int, tuple[Bucket, ...]]:
    """Buckets of each segment of a row."""
    position = {step: index for index, step in enumerate(steps)}
    order = sorted(completing, key=lambda segment: position[completing[segment]])
    return rank_buckets(graph, strategy, cut.parts, order, tied=cut.tied, sizes=cut.parameter_bytes)
