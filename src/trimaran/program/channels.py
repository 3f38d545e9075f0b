"""The order in which a channel between two rows delivers, where a placement leaves a choice.

A channel delivers first in, first out. It may take messages as they are made, or as they are needed: then one that is
made early and needed late waits behind one that is needed sooner. Neither is always better, so both are played through
with the lengths of steps and messages, and the one that ends earlier is taken; as they are made where they are equal.

    made     0 ──a─────────────────────────▶ b is made a little after a, and waits for all of it
             1     ──────────b──▶            needed: b goes first, although a is ready
"""

from collections.abc import Mapping, Sequence

from trimaran.program.cut import Pair
from trimaran.program.orders import Compute, Order
from trimaran.program.placed import FLOPS_PER_BYTE
from trimaran.program.traffic import Message

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
