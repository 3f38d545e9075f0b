"""The messages of an order of compute: what goes from which segment to which, and in which order.

An activation goes straight from the segment that makes it to each other row that reads it, once: to the first segment
there that reads it. Its gradient comes back the same way, when all segments of that row have added theirs. A channel is
an ordered pair of ranks and delivers first in, first out, so its two ends must agree on an order. Both take it from a
clock: a message has the time at which the last of its producers starts.

    sender     0F0 ─▶SEND 0F1 ─▶SEND            a send is listed right after its last producer
    receiver   RECV▶ ...  1F0  ...  1F1         a receive is listed one step before its first consumer, so that it is
                                                posted while that step runs; earlier where it is made earlier, or where
                                                a later message of the same channel is wanted before it

The order in which a channel between two rows delivers, where a placement leaves a choice.

A channel delivers first in, first out. It may take messages as they are made, or as they are needed: then one that is
made early and needed late waits behind one that is needed sooner. Neither is always better, so both are played through
with the lengths of steps and messages, and the one that ends earlier is taken; as they are made where they are equal.

    made     0 ──a─────────────────────────▶ b is made a little after a, and waits for all of it
             1     ──────────b──▶            needed: b goes first, although a is ready
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.program.lowering.partition import Pair
from trimaran.program.lowering.schedules import FLOPS_PER_BYTE, Clock, Compute, Order
from trimaran.program.types import Kind

FORWARDS = frozenset({Kind.FORWARD, Kind.EVALUATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What goes from a segment to another row for every microbatch.

    Attributes:
        producer: segment that makes the tensors
        consumer: first segment of the other row that reads them
        readers: all segments of that row that read any of them
        forward_bytes: of the activations [bytes]
        backward_bytes: of the gradients that come back; 0: none does [bytes]
    """

    producer: int
    consumer: int
    readers: tuple[int, ...]
    forward_bytes: int
    backward_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Tensors on their way from one segment to another, for one microbatch.

    Attributes:
        forward: activations; False: gradients
        producers: steps that make them, of one row, in its order
        consumers: steps that read them, of one row, in its order
        sender: segment that the send belongs to
        receiver: segment that the receive belongs to
        source: row of the producers
        target: row of the consumers
        nbytes: size [bytes]
    """

    forward: bool
    producers: tuple[Compute, ...]
    consumers: tuple[Compute, ...]
    sender: int
    receiver: int
    source: int
    target: int
    nbytes: int

    @property
    def microbatch(self) -> int:
        """Its microbatch."""
        return self.producers[0].microbatch


def messages(
    order: Order, routes: Iterable[Route], rows: Sequence[int], starts: Mapping[Compute, float]
) -> tuple[Message, ...]:
    """All messages of one replica, by the time at which their last producer starts.

    Args:
        order: one row of steps a rank
        routes: what the segments exchange
        rows: row of each segment
        starts: start of each step

    Returns:
        The messages; those of one channel are in the order in which it delivers them.
    """
    position = {step: index for steps in order for index, step in enumerate(steps)}
    training = not any(step.kind is Kind.EVALUATE for step in position)
    microbatches = 1 + max(step.microbatch for step in position)

    def steps(segments: Iterable[int], microbatch: int, *, forward: bool) -> tuple[Compute, ...]:
        found = [_step(position, segment, microbatch, forward=forward) for segment in segments]
        return tuple(sorted(found, key=position.__getitem__))

    found = []
    for route in routes:
        ends = (route.producer, route.consumer)
        for microbatch in range(microbatches):
            makes = steps([route.producer], microbatch, forward=True)
            reads = steps(route.readers, microbatch, forward=True)
            found.append(_message(True, makes, reads, ends, rows, route.forward_bytes))
            if training and route.backward_bytes:
                makes = steps(route.readers, microbatch, forward=False)
                reads = steps([route.producer], microbatch, forward=False)
                found.append(_message(False, makes, reads, ends[::-1], rows, route.backward_bytes))
    found.sort(key=lambda item: (_when(item, starts), item.source, position[item.producers[-1]], item.receiver))
    return tuple(found)


def receive_positions(order: Order, sent: Sequence[Message], clock: Clock) -> tuple[int, ...]:
    """Where each message is received: before which step of its target row.

    Args:
        order: one row of steps a rank
        sent: the messages, those of one channel in its order
        clock: when steps run; where they have lengths of their own, a receive is also posted before the step that runs
            when its message is made

    Returns:
        For each message, a position in its target row; never falling along a channel.
    """
    position = {step: index for steps in order for index, step in enumerate(steps)}
    ends = None
    if clock.lengths is not None:
        ends = {step: start + clock.lengths[step] for step, start in clock.starts.items()}
    positions = [0] * len(sent)
    earliest: dict[Pair, int] = {}
    for number in reversed(range(len(sent))):
        message = sent[number]
        channel = (message.source, message.target)
        wanted = max(0, position[message.consumers[0]] - 1)
        if ends is not None:
            made = ends[message.producers[-1]]
            wanted = min(wanted, sum(ends[step] <= made for step in order[message.target][:wanted]))
        earliest[channel] = min(wanted, earliest.get(channel, wanted))
        positions[number] = earliest[channel]
    return tuple(positions)


def _when(message: Message, starts: Mapping[Compute, float]) -> float:
    return starts[message.producers[-1]]


def _message(
    forward: bool,
    makes: tuple[Compute, ...],
    reads: tuple[Compute, ...],
    ends: Pair,
    rows: Sequence[int],
    nbytes: int,
) -> Message:
    return Message(
        forward=forward,
        producers=makes,
        consumers=reads,
        sender=ends[0],
        receiver=ends[1],
        source=rows[ends[0]],
        target=rows[ends[1]],
        nbytes=nbytes,
    )


def _step(steps: Mapping[Compute, int], segment: int, microbatch: int, *, forward: bool) -> Compute:
    # A segment may run its whole backward for one microbatch and split it for another.
    kinds = (Kind.FORWARD, Kind.EVALUATE) if forward else (Kind.BACKWARD, Kind.BACKWARD_INPUT)
    first = Compute(kinds[0], segment, microbatch)
    return first if first in steps else Compute(kinds[1], segment, microbatch)


LINK_FLOPS_PER_BYTE = 20.0 * FLOPS_PER_BYTE
"""Operations in the time of a byte between devices: links are some twenty times slower than memories."""


def channel_order(order: Order, sent: Sequence[Message], lengths: Mapping[Compute, float]) -> tuple[Message, ...]:
    """The messages, on each channel in the better of both orders; channels are decided one after the other.

    Args:
        order: one row of steps a rank
        sent: the messages as they are made (`traffic.messages`)
        lengths: how long each step takes [units]

    Returns:
        The messages, those of one channel in its order.
    """
    position = {step: index for steps in order for index, step in enumerate(steps)}
    channels: dict[Pair, list[Message]] = {}
    for message in sent:
        channels.setdefault((message.source, message.target), []).append(message)
    end = _end(order, channels, lengths)
    for channel, made in channels.items():
        needed = sorted(made, key=lambda item: position[item.consumers[0]])
        if needed == made:
            continue
        sooner = _end(order, {**channels, channel: needed}, lengths)
        if sooner < end:
            channels[channel], end = needed, sooner
    return tuple(message for queue in channels.values() for message in queue)


def send_positions(order: Order, sent: Sequence[Message]) -> tuple[int, ...]:
    """After which step of its row each message is sent: its last producer, or that of one before it on its channel.

    Args:
        order: one row of steps a rank
        sent: the messages, those of one channel in its order
    """
    position = {step: index for steps in order for index, step in enumerate(steps)}
    latest: dict[Pair, int] = {}
    found = []
    for message in sent:
        channel = message.source, message.target
        latest[channel] = max(latest.get(channel, 0), position[message.producers[-1]])
        found.append(latest[channel])
    return tuple(found)


def _end(order: Order, channels: Mapping[Pair, Sequence[Message]], lengths: Mapping[Compute, float]) -> float:
    """When the last step ends [units]."""
    awaited: dict[Compute, list[int]] = {}
    for queue in channels.values():
        for message in queue:
            for step in message.consumers:
                awaited.setdefault(step, []).append(id(message))
    step_ends: dict[Compute, float] = {}
    message_ends: dict[int, float] = {}
    reached = [0] * len(order)
    passed = dict.fromkeys(channels, 0)
    clocks = [0.0] * len(order)
    free = dict.fromkeys(channels, 0.0)
    moved = True
    while moved:
        moved = False
        for row, steps in enumerate(order):
            while reached[row] < len(steps):
                step = steps[reached[row]]
                arrivals = [message_ends.get(number) for number in awaited.get(step, ())]
                if None in arrivals:
                    break
                start = max([clocks[row], *(arrival for arrival in arrivals if arrival is not None)])
                clocks[row] = step_ends[step] = start + lengths[step]
                reached[row] += 1
                moved = True
        for channel, queue in channels.items():
            while passed[channel] < len(queue):
                message = queue[passed[channel]]
                made = step_ends.get(message.producers[-1])
                if made is None:
                    break
                free[channel] = max(made, free[channel]) + LINK_FLOPS_PER_BYTE * message.nbytes
                message_ends[id(message)] = free[channel]
                passed[channel] += 1
                moved = True
    return max(clocks)
