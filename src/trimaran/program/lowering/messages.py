"""The messages of an order of compute: what goes from which segment to which, and in which order.

An activation goes straight from the segment that makes it to each other row that reads it, once: to the first segment
there that reads it. Its gradient comes back the same way, when all segments of that row have added theirs. A channel is
an ordered pair of ranks and delivers first in, first out, so its two ends must agree on an order. Both take it from a
clock: a message has the time at which the last of its producers starts.

    sender     0F0 ─▶SEND 0F1 ─▶SEND            a send is listed right after its last producer
    receiver   RECV▶ ...  1F0  ...  1F1         a receive is listed one step before its first consumer, so that it is
                                                posted while that step runs; earlier where it is made earlier, or where
                                                a later message of the same channel is wanted before it

Where a placement leaves a choice, a channel may take messages as they are made, or as they are needed: then one that is
made early and needed late waits behind one that is needed sooner. Neither is always better. So both are simulated with
the lengths of steps and messages, and the one that ends earlier is taken; as they are made where they are equal.

    made     0 ──a─────────────────────────▶ b is made a little after a, and waits for all of it
             1     ──────────b──▶            needed: b goes first, although a is ready
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.program.lowering.partition import Pair, TensorRoute
from trimaran.program.lowering.schedules import FLOPS_PER_BYTE, Clock, Compute, Order, play
from trimaran.program.types import Kind


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
    order: Order, routes: Iterable[TensorRoute], rows: Sequence[int], starts: Mapping[Compute, float], *, samples: int
) -> tuple[Message, ...]:
    """All messages of one replica, by the time at which their last producer starts.

    Args:
        order: one row of steps a rank
        routes: what the segments exchange
        rows: row of each segment
        starts: start of each step
        samples: of a microbatch

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
        producer, consumer = route.producer, route.consumer
        for forward in (True, False) if training else (True,):
            nbytes = route.nbytes(samples, forward=forward)
            if not nbytes and not forward:
                continue
            makers, takers = ((producer,), route.readers) if forward else (route.readers, (producer,))
            sender, receiver = (producer, consumer) if forward else (consumer, producer)
            found += [
                Message(
                    forward=forward,
                    producers=steps(makers, microbatch, forward=forward),
                    consumers=steps(takers, microbatch, forward=forward),
                    sender=sender,
                    receiver=receiver,
                    source=rows[sender],
                    target=rows[receiver],
                    nbytes=nbytes,
                )
                for microbatch in range(microbatches)
            ]
    found.sort(key=lambda item: (starts[item.producers[-1]], item.source, position[item.producers[-1]], item.receiver))
    return tuple(found)


def receive_positions(order: Order, sent: Sequence[Message], clock: Clock) -> tuple[int, ...]:
    """The step of its target row before which each message is received.

    Args:
        order: one row of steps a rank
        sent: the messages, those of one channel in its order
        clock: when steps run; where it has lengths of steps, a receive is also posted before the step that runs
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
    messages = {id(message): message for queue in channels.values() for message in queue}
    needs: dict[Compute | int, list[Compute | int]] = {step: [] for steps in order for step in steps}
    takes: dict[Compute | int, float] = {step: lengths[step] for steps in order for step in steps}
    for number, message in messages.items():
        needs[number] = [message.producers[-1]]
        takes[number] = LINK_FLOPS_PER_BYTE * message.nbytes
        for step in message.consumers:
            needs[step].append(number)
    queues: list[Sequence[Compute | int]] = list(order)
    queues += [[id(message) for message in queue] for queue in channels.values()]
    starts = play(queues, needs, takes)
    return max(starts[steps[-1]] + lengths[steps[-1]] for steps in order if steps)
