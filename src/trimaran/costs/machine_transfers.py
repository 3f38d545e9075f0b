"""What messages and collectives take on a machine of the catalog, and which links they occupy there.

    message      within a node: the links of the pair's route; between nodes: one card out, one card in
    collective   the links of its members' own, or the tree between them, and a share of each node's cards

Times are those of `costs.collectives` for the very devices of the group: they are put first on a copy of their node.
Links have names by direction, such as "n0 gpu0>gpu3". A link is named only where two such transfers at once would not
fit on it, since transfers that share a named link halve each other. Left out: what a collective does on links at each
moment; it is one flow on all of them.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.cluster.machines import Machine
from trimaran.costs.collectives.estimate import collective_cost
from trimaran.costs.machine_links import cards_of, group_links, message_links
from trimaran.costs.types import Cost, Transfer
from trimaran.errors import InputError
from trimaran.program.types import Kind

OPERATIONS = {
    Kind.ALL_REDUCE: "all_reduce",
    Kind.ALL_GATHER: "all_gather",
    Kind.REDUCE_SCATTER: "reduce_scatter",
    Kind.BROADCAST: "broadcast",
    Kind.REDUCE: "reduce",
}
"""Names of collectives in `costs.collectives`."""

MESSAGE = "send_recv"

_EMPTY_BYTES = 8
"""A message of this size takes what no sharing lengthens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What joins the members of a transfer.

    Attributes:
        machine: with the members put first on each node, and with the cards that they reach
        devices: members
        nodes: that they sit on
        links: names of those that the transfer occupies
    """

    machine: Machine
    devices: int
    nodes: int
    links: tuple[str, ...]


def machine_transfer(kind: str, nbytes: int, members: Sequence[int], machine: Machine) -> Transfer:
    """What a transfer costs when nothing else is under way.

    Args:
        kind: `MESSAGE`, or a kind of collective
        nbytes: the whole buffer [bytes]
        members: numbers of the devices on the machine; of a message the sender first
        machine: that has them

    Returns:
        The same for all members.

    Raises:
        InputError: no such collective, a device that is not there, or nothing between two nodes
    """
    if len(members) < 2:
        return Transfer(latency_s=0.0, flow_s=0.0, links=(), low=0.0, high=0.0, source="analytic: one device")
    if kind != MESSAGE and kind not in OPERATIONS:
        raise InputError(f'nobody knows what "{kind}" takes between devices', kind=kind)
    operation = kind if kind == MESSAGE else OPERATIONS[Kind(kind)]
    order = tuple(members) if kind == MESSAGE else tuple(sorted(members))
    way = _way(_Key(machine), order, operation == MESSAGE)
    cost = _cost(way, operation, nbytes)
    latency_s = min(_latency_s(_WayKey(way), operation), cost.seconds)
    return Transfer(
        latency_s=latency_s,
        flow_s=cost.seconds - latency_s,
        links=way.links,
        low=cost.low,
        high=cost.high,
        source=cost.source,
    )


class _Key:
    """A machine by its identity, as a key: comparing link graphs takes longer than finding it again."""

    __slots__ = ("machine",)

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __hash__(self) -> int:
        return hash((self.machine.node.name, self.machine.nodes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and (self.machine is other.machine or self.machine == other.machine)


class _WayKey:
    """A way by its identity, as a key."""

    __slots__ = ("way",)

    def __init__(self, way: Way) -> None:
        self.way = way

    def __hash__(self) -> int:
        return hash(self.way.links)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WayKey) and self.way is other.way


def _cost(way: Way, operation: str, nbytes: int) -> Cost:
    return collective_cost(operation, nbytes, machine=way.machine, devices=way.devices, nodes=way.nodes)


@functools.lru_cache(maxsize=4096)
def _latency_s(key: _WayKey, operation: str) -> float:
    return _cost(key.way, operation, _EMPTY_BYTES).seconds


@functools.lru_cache(maxsize=4096)
def _way(key: _Key, members: tuple[int, ...], message: bool) -> Way:
    machine = key.machine
    each = machine.node.devices
    wrong = [number for number in members if not 0 <= number < machine.devices]
    if wrong:
        raise InputError(
            f"{machine.node.title} has devices 0 to {machine.devices - 1}, not {wrong[0]}",
            code="transfer.no-such-device",
            device=wrong[0],
        )
    on: dict[int, list[int]] = {}
    for number in members:
        on.setdefault(number // each, []).append(number % each)
    if message:
        links = message_links(machine, members[0], members[1])
    else:
        links = tuple(name for host, local in on.items() for name in group_links(machine, host, local, len(on) > 1))
    per_node = max(len(local) for local in on.values())
    widest = max(on.values(), key=len)
    return Way(
        machine=_with_first(machine, widest, nodes=len(on)),
        devices=per_node * len(on),
        nodes=len(on),
        links=links,
    )


def _with_first(machine: Machine, chosen: Sequence[int], *, nodes: int) -> Machine:
    """The machine with some devices of a node put first, and no more cards than these devices reach."""
    node = machine.node
    order = [*chosen, *(number for number in range(node.devices) if number not in set(chosen))]
    names = {f"gpu{number}": f"gpu{place}" for place, number in enumerate(order)}
    if all(old == new for old, new in names.items()):
        edges = node.edges
    else:
        edges = tuple(
            dataclasses.replace(edge, a=names.get(edge.a, edge.a), b=names.get(edge.b, edge.b)) for edge in node.edges
        )
    fabric = machine.fabric
    if nodes > 1 and fabric is not None:
        fabric = (len(cards_of(node, fabric[0], chosen)), fabric[1])
    return Machine(node=dataclasses.replace(node, edges=edges), nodes=machine.nodes, fabric=fabric)
