"""The box that a card without links of its own is thought to sit in, where nobody says.

What such cards reach together depends on their box more than on themselves: whether they may access each other, through
which switches and sockets. Where the machine is only "eight of this card", the box in which collectives of this card
were measured stands in; it is a real one.
"""

import functools
import re
from dataclasses import replace

from trimaran.costs.collectives.curves import measured_curves
from trimaran.costs.collectives.groups import OVER_PCIE, Group

_PLAIN = re.compile(r"\d+x")


def as_measured(group: Group) -> Group:
    """The same devices in the box where their like was measured; the group itself where there is none, or no need.

    Args:
        group: the devices

    Returns:
        With kind, rates and name of the measured box that has the nearest number of devices.
    """
    if group.kind not in OVER_PCIE or not _PLAIN.match(group.node):
        return group
    boxes = _boxes(group.device)
    if not boxes or group.node in {box.node for box in boxes}:
        boxes = tuple(box for box in boxes if box.node == group.node)
    if not boxes:
        return group
    box = min(boxes, key=lambda one: abs(one.devices - group.per_node))
    return replace(
        group,
        kind=box.kind,
        generation=box.generation,
        ring_bytes_per_s=box.ring_bytes_per_s,
        exchange_bytes_per_s=box.exchange_bytes_per_s,
        node=box.node,
    )


@functools.cache
def _boxes(device: str) -> tuple[Group, ...]:
    """Groups of one node that were measured, of this device and without links of their own, a group once."""
    groups = {curve.group for curve in measured_curves() if curve.group.device == device and curve.group.nodes == 1}
    return tuple(sorted((one for one in groups if one.kind in OVER_PCIE), key=lambda one: (one.devices, one.node)))
