"""Collectives between ranks of a divided step, priced on a machine.

Ranks stand in the order tensor, context, data, pipeline: the first ones are neighbours on a node. A group whose members
are `near` ranks apart has as many siblings on the same nodes, and siblings use the nodes' network cards at once. So the
time of a group that spans nodes is that of a group of whole nodes with the siblings' bytes added.
"""

import functools
import math
from collections.abc import Callable

from trimaran.cluster.machines import Machine
from trimaran.costs.collectives.estimate import collective_cost

Exchange = Callable[[str, float, int, int], float]
"""Time [s] of a collective: its name, its bytes, devices of the group, and how many of them share a node's links."""


def machine_exchange(machine: Machine, *, year: float) -> Exchange:
    """Prices collectives of groups of ranks on a machine.

    Args:
        machine: nodes and fabric
        year: of the library

    Returns:
        Time [s] of a collective by its name, its bytes, members of the group and how far apart they stand.
    """
    per_node = machine.node.devices

    @functools.cache
    def price(op: str, nbytes: float, members: int, near: int) -> float:
        if members <= 1 or nbytes <= 0:
            return 0.0
        if op == "send_recv":
            return _send(nbytes, near)
        on_node = max(1, min(members, per_node // near))
        nodes = math.ceil(members / on_node)
        if nodes == 1 or machine.nodes == 1:
            return _cost(op, nbytes, min(members, per_node), 1)
        siblings = max(1, per_node // on_node)
        nodes = min(nodes, machine.nodes)
        return _cost(op, nbytes * siblings, nodes * per_node, nodes)

    def _send(nbytes: float, stages: int) -> float:
        crosses = machine.nodes > 1 and machine.devices // max(1, stages) >= per_node
        cards = machine.fabric[0] if crosses and machine.fabric else per_node
        return _cost("send_recv", nbytes * max(1.0, per_node / cards), 2, 2 if crosses else 1)

    def _cost(op: str, nbytes: float, devices: int, nodes: int) -> float:
        return collective_cost(op, nbytes, machine=machine, devices=devices, nodes=nodes, year=year).seconds

    return price
