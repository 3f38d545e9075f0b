"""The messages of an order of compute: what goes from which segment to which, and in which order.

An activation goes straight from the segment that makes it to each segment on another rank that reads it, and its
gradient comes back the same way. A channel is an ordered pair of ranks and delivers first in, first out, so its two
ends must agree on an order. Both take it from the logical clock: a message has the time at which its producer ends.

    sender     0F0 ─▶SEND 0F1 ─▶SEND            a send is listed right after its producer
    receiver   RECV▶ ...  1F0  ...  1F1         a receive is listed one step before its consumer, so that it is posted
                                                while that step runs; earlier where a later message of the same channel
                                                is wanted before it
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.program.cut import Cut
from trimaran.program.orders import Compute, Order
from trimaran.program.types import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A tensor on its way from one segment to another, for one microbatch.

    Attributes:
        forward: an activation; False: a gradient
        producer: step that makes it
        consumer: step that reads it
        source: row of the producer
        target: row of the consumer
        nbytes: size [bytes]
    """

    forward: bool
    producer: Compute
    consumer: Compute
    source: int
    target: int
    nbytes: int


def messages(order: Order, cut: Cut, rows: Sequence[int], starts: Mapping[Compute, int]) -> tuple[Message, ...]:
    """All messages of one replica, by the time at which their producer ends.

    Args:
        order: one row of steps a rank
        cut: what the segments exchange
        rows: row of each segment
        starts: logical clock of the steps

    Returns:
        The messages; those of one channel are in the order in which it delivers them.
    """
    consumers = _by_first(cut.forward)
    producers = _by_first({(consumer, producer): size for (producer, consumer), size in cut.backward.items()})
    found = []
    for row, steps in enumerate(order):
        for step in steps:
            forward = step.kind in (Kind.FORWARD, Kind.EVALUATE)
            if step.kind is Kind.BACKWARD_WEIGHT:
                continue
            for segment, nbytes in (consumers if forward else producers).get(step.segment, ()):
                if rows[segment] != row:
                    found.append(
                        Message(
                            forward=forward,
                            producer=step,
                            consumer=_consumer(step, segment, starts),
                            source=row,
                            target=rows[segment],
                            nbytes=nbytes,
                        )
                    )
    found.sort(key=lambda message: (starts[message.producer], message.source, message.consumer.segment))
    return tuple(found)


def receive_positions(order: Order, sent: Sequence[Message]) -> tuple[int, ...]:
    """Where each message is received: before which step of its target row.

    Args:
        order: one row of steps a rank
        sent: the messages, as `messages` orders them

    Returns:
        For each message, a position in its target row; never falling along a channel.
    """
    position = {step: index for steps in order for index, step in enumerate(steps)}
    positions = [0] * len(sent)
    earliest: dict[tuple[int, int], int] = {}
    for number in reversed(range(len(sent))):
        message = sent[number]
        channel = (message.source, message.target)
        wanted = max(0, position[message.consumer] - 1)
        earliest[channel] = min(wanted, earliest.get(channel, wanted))
        positions[number] = earliest[channel]
    return tuple(positions)


def _by_first(sizes: Mapping[tuple[int, int], int]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for (first, second), nbytes in sorted(sizes.items()):
        found.setdefault(first, []).append((second, nbytes))
    return found


def _consumer(step: Compute, segment: int, starts: Mapping[Compute, int]) -> Compute:
    if step.kind in (Kind.FORWARD, Kind.EVALUATE):
        return Compute(step.kind, segment, step.microbatch)
    # A segment may split its backward where the one before it in the backward does not.
    whole = Compute(Kind.BACKWARD, segment, step.microbatch)
    return whole if whole in starts else Compute(Kind.BACKWARD_INPUT, segment, step.microbatch)
