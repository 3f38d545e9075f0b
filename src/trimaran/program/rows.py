"""What one row of a pipeline does around its steps of compute; the same in every replica."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.graph.types import Graph
from trimaran.program.buckets import Bucket, gradient_buckets
from trimaran.program.cut import Cut
from trimaran.program.orders import Compute, Order
from trimaran.program.traffic import Message, messages, receive_positions
from trimaran.program.types import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The steps of a row and what stands around each.

    Attributes:
        steps: its steps of compute
        received: for each step, the messages that are received before it in the list
        sent: for each step, the messages that it makes
        needed: for each step, the messages that it waits for
        data: names of the tensors of a batch that the row reads
        loaded: for each step that reads a microbatch first, True
        fed: for each step, whether it reads a tensor of the batch
        completing: for each segment that is trained here, its last step that adds to gradients
        buckets: for each of those segments, its gradient buckets
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
    graph: Graph, cut: Cut, order: Order, starts: Mapping[Compute, int], rows: Sequence[int], bucket_bytes: int
) -> tuple[Row, ...]:
    """Put loads, messages and reductions around the steps of an order.

    Args:
        graph: the job
        cut: the graph, cut into the segments of the order
        order: one row of steps a rank
        starts: logical clock of the steps
        rows: row of each segment
        bucket_bytes: size at which a bucket of gradients is sent [bytes]

    Returns:
        One row for each row of the order.
    """
    sent = messages(order, cut, rows, starts)
    before = [[list[Message]() for _ in steps] for steps in order]
    for message, position in zip(sent, receive_positions(order, sent), strict=True):
        before[message.target][position].append(message)
    made: dict[Compute, list[Message]] = {}
    needed: dict[Compute, list[Message]] = {}
    for message in sent:
        made.setdefault(message.producer, []).append(message)
        needed.setdefault(message.consumer, []).append(message)
    last = max((step for step in order[rows[-1]] if _scores(step, rows)), key=starts.__getitem__)
    planned = []
    for steps, received in zip(order, before, strict=True):
        fed = tuple(_reads_batch(step, cut) for step in steps)
        completing = {step.segment: step for step in steps if step.kind in _COMPLETING}
        planned.append(
            Row(
                steps=steps,
                received=tuple(map(tuple, received)),
                sent=tuple(tuple(made.get(step, ())) for step in steps),
                needed=tuple(tuple(needed.get(step, ())) for step in steps),
                data=tuple(name for name in cut.data_bytes if any(name in cut.data[step.segment] for step in steps)),
                loaded=_first_uses(steps, fed),
                fed=fed,
                completing=completing,
                buckets=_buckets(graph, cut, steps, completing, bucket_bytes),
                mean=sum(starts[step] <= starts[last] for step in steps) - 1,
            )
        )
    return tuple(planned)


_COMPLETING = (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
_FORWARDS = (Kind.FORWARD, Kind.EVALUATE)


def _scores(step: Compute, rows: Sequence[int]) -> bool:
    return step.kind in _FORWARDS and step.segment == len(rows) - 1


def _reads_batch(step: Compute, cut: Cut) -> bool:
    return step.kind in _FORWARDS and bool(cut.data[step.segment])


def _first_uses(steps: Sequence[Compute], fed: Sequence[bool]) -> tuple[bool, ...]:
    seen: set[int] = set()
    first = []
    for step, reads in zip(steps, fed, strict=True):
        first.append(reads and step.microbatch not in seen)
        if reads:
            seen.add(step.microbatch)
    return tuple(first)


def _buckets(
    graph: Graph, cut: Cut, steps: Sequence[Compute], completing: Mapping[int, Compute], bucket_bytes: int
) -> dict[int, tuple[Bucket, ...]]:
    """Buckets of each segment of a row; a weight that two of them share is complete with the later one."""
    position = {step: index for index, step in enumerate(steps)}
    taken: set[str] = set()
    buckets = {}
    for segment in sorted(completing, key=lambda segment: position[completing[segment]], reverse=True):
        buckets[segment] = gradient_buckets(graph, cut.parts[segment], bucket_bytes, without=taken)
        taken.update(name for name, users in cut.tied.items() if segment in users)
    return buckets
