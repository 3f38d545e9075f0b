"""Whether the replicas of a program are so alike that one of them says what all do.

They are where each is priced the same and none gets in the way of another: what replicas move within themselves flows
over links of its own. What they do together is priced for the whole group.
"""

from dataclasses import replace

from trimaran.cluster.layout import order_devices
from trimaran.cluster.types import Cluster
from trimaran.costs.tables import CostTable
from trimaran.costs.transfers import transfer_cost
from trimaran.program.types import Instruction, Program, Strategy


def can_fold(program: Program, strategy: Strategy, table: CostTable, cluster: Cluster) -> bool:
    """Whether the simulation of the first replica, or of the first node of them, gives the times of all.

    Args:
        program: the lists of the first replica, or node (`program.lower_replica`)
        strategy: how many replicas there are, and on which devices
        table: what was measured
        cluster: the devices

    Returns:
        False also where homes make replicas differ.
    """
    if strategy.dp == 1 or strategy.sync == "p2p":
        return False
    cluster = order_devices(cluster, strategy.device_order)
    if len({(device.kind, device.name) for device in cluster.devices[: strategy.devices]}) > 1:
        return False
    size = len(program.ranks)
    return all(_is_alike(item, size, strategy, table, cluster) for item in _within(program, size))


def _within(program: Program, size: int) -> list[Instruction]:
    """What a replica or node moves within itself: one instruction for each pair or group and size."""
    found: dict[tuple[object, ...], Instruction] = {}
    for item in program:
        if item.peer is not None or (item.group and item.group[-1] < size):
            found.setdefault((item.kind, item.rank if item.peer is not None else None, item.peer, item.group), item)
    return list(found.values())


def _is_alike(item: Instruction, size: int, strategy: Strategy, table: CostTable, cluster: Cluster) -> bool:
    taken: set[str] = set()
    first = transfer_cost(item, table, cluster)
    for shift in range(0, strategy.devices, size):
        moved = replace(
            item,
            rank=item.rank + shift,
            peer=None if item.peer is None else item.peer + shift,
            group=tuple(rank + shift for rank in item.group),
            root=None if item.root is None else item.root + shift,
        )
        found = transfer_cost(moved, table, cluster)
        same = (found.latency_s, found.flow_s) == (first.latency_s, first.flow_s)
        if not same or not taken.isdisjoint(found.links):
            return False
        taken.update(found.links)
    return True
