"""Which links the members of a transfer cross: asked by every price of a message or a collective on a machine.

Ranks have the devices of a machine node by node. Devices of a node have its network cards dealt out evenly, so a group
with one member on a node sends by the cards of that device, not by all of them.

    members       nodes that they sit on; the devices of the node that has most of them; cards, the least of any node
    stride        ranks between two members of a group plus one: the groups in between communicate at the same time and
                  share the cards

A group of 6 with stride 1 on nodes of 8 lies inside a node or across two, depending on where it starts. Collectives of
all groups are waited for, so the slowest one counts, and every layout that occurs is priced.

Left out: links that equal groups share inside a node.

A group of devices as input of the collective model: its links, and how the time is measured.

A machine of the catalog and a measured machine have the same description.

The links between the devices of a group, from the link graph of their machine.

A library of collectives runs around rings (`machine/rings.py` finds them): over links of the devices' own where a ring
of them exists, else over PCIe, or through host memory where devices have no access to each other, which in a virtual
machine is slower still. An exchange of all with all uses every link; pairs without one are served through a device in
between.

Left out: other traffic on these links than that of equal groups.
"""

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from trimaran.base.errors import InputError
from trimaran.base.units import format_count
from trimaran.machine.rings import RingSet, ring_bandwidth, ring_rate
from trimaran.machine.topology import pair, relays
from trimaran.machine.types import Link, Machine, Node

# ---------------------------------------------------------------------------------------------------------------------
# Links that the members of a transfer cross


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Links that the members of a transfer cross.

    Attributes:
        local: devices of the node that has most members, by their numbers on it
        nodes: that the members sit on
        cards: of each node that the members send by, the least of any node; 0 on one node
        sharing: transfers alike that are under way at the same time on the same cards, this one included
    """

    local: tuple[int, ...]
    nodes: int = 1
    cards: int = 0
    sharing: int = 1

    @property
    def devices(self) -> int:
        """Members, counted as if each node had the number of the fullest one."""
        return len(self.local) * self.nodes


def fabric_of(machine: Machine) -> tuple[int, Link]:
    """Network cards of a node: how many, and of what type.

    Raises:
        InputError: nothing joins its nodes
    """
    if machine.fabric is None:
        raise InputError(
            f"{machine.node.name}: nothing joins its nodes; name a fabric, such as "
            f'"{machine.node.name}:{max(2, machine.nodes)}@ethernet-25g"',
            code="exchange.no-network-cards",
            nodes=machine.nodes,
        )
    return machine.fabric


def cards_of(node: Node, count: int, chosen: Iterable[int]) -> tuple[int, ...]:
    """Cards of a node that some devices send by: cards are dealt out evenly, and a device may have several.

    Args:
        node: that has the devices
        count: cards of the node
        chosen: devices, by their numbers on the node
    """
    if count >= node.devices:
        each = count // node.devices
        return tuple(card for number in sorted(chosen) for card in range(number * each, (number + 1) * each))
    return tuple(sorted({number * count // node.devices for number in chosen}))


def first_devices(machine: Machine, devices: int, nodes: int = 1) -> Crossing:
    """Of the first devices of each node.

    Args:
        machine: of the devices
        devices: in all, equally many on each node
        nodes: in use

    Raises:
        InputError: not equally many on each node, or more than there are, or several nodes with nothing between them
    """
    node = machine.node
    if nodes < 1 or devices < 1 or devices % nodes:
        raise InputError(
            f"{node.name}: {format_count(devices, 'device')} on {nodes} nodes are not equally many on each",
            code="collective.uneven-nodes",
            devices=devices,
            nodes=nodes,
        )
    if devices // nodes > node.devices:
        raise InputError(
            f"{node.name}: a node has {format_count(node.devices, 'device')}, {devices // nodes} of each were asked "
            f"for; use {-(-devices // node.devices)} nodes",
            code="collective.too-many-devices-on-node",
            devices=devices,
            nodes=nodes,
        )
    local = tuple(range(devices // nodes))
    cards = len(cards_of(node, fabric_of(machine)[0], local)) if nodes > 1 else 0
    return Crossing(local=local, nodes=nodes, cards=cards)


def members_on_nodes(machine: Machine, members: Sequence[int]) -> dict[int, list[int]]:
    """Members of a transfer by node, as numbers of devices on it.

    Args:
        machine: that has them
        members: numbers of devices on the machine, counted node by node
    """
    on: dict[int, list[int]] = defaultdict(list)
    for number in members:
        on[number // machine.node.devices].append(number % machine.node.devices)
    return on


def crossing_of(machine: Machine, members: Sequence[int]) -> Crossing:
    """Links that a transfer crosses when no other transfer runs.

    Args:
        machine: that has the members
        members: numbers of devices on the machine

    Raises:
        InputError: several nodes with nothing between them
    """
    on = members_on_nodes(machine, members)
    return _crossing(machine, on, {})


def _crossing(machine: Machine, on: dict[int, list[int]], load: dict[tuple[int, int], int]) -> Crossing:
    """Of members by node, on cards `(node, card)` that this number of transfers use."""
    widest = max(on.values(), key=len)
    # By itself on its node, a device is like any other.
    local = tuple(widest) if len(widest) > 1 else (0,)
    if len(on) == 1:
        return Crossing(local=local)
    count, _ = fabric_of(machine)
    used = {host: cards_of(machine.node, count, chosen) for host, chosen in on.items()}
    return Crossing(
        local=local,
        nodes=len(on),
        cards=min(map(len, used.values())),
        sharing=max(load.get((host, card), 1) for host, cards in used.items() for card in cards),
    )


def _groups(blocks: int, members: int, stride: int) -> tuple[tuple[int, ...], ...]:
    """Groups of the first blocks, as ranks."""
    block = members * stride
    return tuple(
        tuple(range(first * block + offset, (first + 1) * block, stride))
        for first in range(blocks)
        for offset in range(stride)
    )


def group_crossings(machine: Machine, *, ranks: int, members: int, stride: int) -> frozenset[Crossing]:
    """Links that groups cross at the same time, each layout once.

    Args:
        machine: whose devices the ranks have, node by node
        ranks: in all
        members: of each group
        stride: between neighbours of a group; groups fill blocks of `members * stride` ranks

    Raises:
        InputError: several nodes with nothing between them

    Example:
        Groups of 6 on nodes of 8: a whole one, and those that two nodes have parts of.

        >>> from trimaran.machine.find import find_machine
        >>> machine = find_machine("dgx-h100:3")
        >>> sorted({(len(each.local), each.nodes) for each in group_crossings(machine, ranks=24, members=6, stride=1)})
        [(4, 2), (6, 1)]

        Replicas of 8 tensor-parallel ranks: one member on each of three nodes, a network card for each.

        >>> [(each.nodes, each.cards, each.sharing) for each in group_crossings(machine, ranks=24, members=3, stride=8)]
        [(3, 1, 1)]
    """
    per_node = machine.node.devices
    if stride >= per_node:
        return frozenset({_one_on_each(machine, ranks, members)})
    # Members beyond three rounds of a node's devices repeat the pattern of those before: only nodes are added.
    around = per_node // math.gcd(stride, per_node)
    left_out = max(0, members // around - 2) * around
    block = (members - left_out) * stride
    blocks = min(max(1, ranks // (members * stride)), per_node // math.gcd(block, per_node))
    placed = [members_on_nodes(machine, group) for group in _groups(blocks, members - left_out, stride)]
    load: Counter[tuple[int, int]] = Counter()
    for on in placed:
        if len(on) > 1:
            count, _ = fabric_of(machine)
            load.update((host, card) for host, chosen in on.items() for card in cards_of(machine.node, count, chosen))
    more = left_out * stride // per_node
    return frozenset(replace(each, nodes=each.nodes + more) for each in (_crossing(machine, on, load) for on in placed))


def _one_on_each(machine: Machine, ranks: int, members: int) -> Crossing:
    """Crossing of groups with one member on each node; each device of a node belongs to one group."""
    if members == 1:
        return Crossing(local=(0,))
    node, (count, _) = machine.node, fabric_of(machine)
    groups = min(ranks // members, node.devices)
    load = Counter(card for number in range(groups) for card in cards_of(node, count, (number,)))
    return Crossing(local=(0,), nodes=members, cards=len(cards_of(node, count, (0,))), sharing=max(load.values()))


def message_crossings(machine: Machine, *, ranks: int, stride: int) -> frozenset[Crossing]:
    """Links of messages that all ranks send at the same time to the rank `stride` further on, each layout once.

    Args:
        machine: whose devices the ranks have, node by node
        ranks: in all
        stride: from a sender to its receiver

    Raises:
        InputError: several nodes with nothing between them

    Example:
        Stages of 4 ranks on nodes of 8: every other stage sends to the next node.

        >>> from trimaran.machine.find import find_machine
        >>> machine = find_machine("dgx-h100:2@ethernet-25g")
        >>> sorted({(each.nodes, each.sharing) for each in message_crossings(machine, ranks=16, stride=4)})
        [(1, 1), (2, 4)]
    """
    node = machine.node
    # Nodes repeat the messages of the first one.
    senders = range(min(ranks - stride, node.devices))
    placed = [members_on_nodes(machine, (sender, sender + stride)) for sender in senders]
    load: Counter[int] = Counter()
    for sender, on in zip(senders, placed, strict=True):
        if len(on) > 1:
            load.update(cards_of(node, fabric_of(machine)[0], (sender,)))
    out = {(0, card): count for card, count in load.items()}
    return frozenset(_crossing(machine, on, out) for on in placed)


# ---------------------------------------------------------------------------------------------------------------------
# The links of a group, as input of the collective model


LinkKind = Literal["nvswitch", "nvlink", "xgmi", "pcie", "host", "virtual"]
"""Links between devices of a node: links through switches, links pair by pair (of two makes), PCIe, or only
memory of the host, on bare metal or in a virtual machine."""

OVER_PCIE = frozenset({"pcie", "host", "virtual"})
"""Kinds of devices without links between devices (no NVLink)."""

CardKind = Literal["", "infiniband", "efa", "ethernet"]
"""Network between nodes; "ethernet" is TCP, without direct access to device memory."""

Timing = Literal["stream", "threads", "single", "processes", "torch", "wall"]
"""How a time was taken, which decides the fixed cost in it.

"stream": by the device, calls queued ahead, as in a training step. "threads": nccl-tests with a thread a device.
"single": nccl-tests with one thread that launches on all devices in turn (its default, `-g 8`). "processes": nccl-tests
with a process a device. "torch": torch.distributed, calls one after the other. "wall": torch.distributed by the host's
clock, with the device idle before every call.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Devices that exchange with one another.

    Attributes:
        devices: in the group
        nodes: that they sit on, equally many on each
        kind: of the slowest link of the best rings inside a node
        generation: of those links, counted within their family: NVLink 1 to 5, PCIe 3 to 6
        ring_bytes_per_s: of the best set of rings inside a node, one direction [bytes/s]
        exchange_bytes_per_s: of a device when each sends another part to each other one [bytes/s]
        card_kind: network between the nodes; "" with one node
        cards_bytes_per_s: of these cards of a node together, one direction [bytes/s]; 0 with one node
        cards: of a node that the members send by
        sharing: groups alike that use these cards at the same time, this one included
        node: name of the machine in the catalog, or of that which was measured
        device: name of the device's family, such as "a100"
    """

    devices: int
    nodes: int = 1
    kind: LinkKind
    generation: float
    ring_bytes_per_s: float
    exchange_bytes_per_s: float
    card_kind: CardKind = ""
    cards_bytes_per_s: float = 0.0
    cards: int = 0
    sharing: int = 1
    node: str = ""
    device: str = ""

    @property
    def per_node(self) -> int:
        """Devices of each node."""
        return max(1, self.devices // self.nodes)


def family(group: Group) -> Literal["links", "pcie", "network"]:
    """The links of a group's collectives: device to device (NVLink), PCIe, or the network between nodes."""
    if group.nodes > 1:
        return "network"
    return "pcie" if group.kind in OVER_PCIE else "links"


CLOUDS = ("AWS ", "Azure ", "Google Cloud ", "Lambda Cloud")
"""How titles of rented machines begin."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Some devices of a node, as a key: two are the same if their links are."""

    node: Node = field(compare=False)
    name: str
    edges: tuple[object, ...] = field(hash=False)
    peer_access: bool
    local: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inside:
    """Links between devices of one node; rates in bytes/s."""

    kind: LinkKind
    generation: float
    ring: float
    exchange: float


def group_of(machine: Machine, devices: int, nodes: int = 1) -> Group:
    """The group of the first devices of each node.

    Args:
        machine: of the devices
        devices: in all, equally many on each node
        nodes: in use

    Returns:
        Their description for the model of a collective.

    Raises:
        InputError: not equally many on each node, or more than there are, or several nodes with nothing between them
    """
    return group_across(machine, first_devices(machine, devices, nodes))


def group_across(machine: Machine, crossing: Crossing) -> Group:
    """The group of devices that cross these links.

    Args:
        machine: of the devices
        crossing: where on it

    Returns:
        Their description for the model of a collective.

    Raises:
        InputError: several nodes with nothing between them
    """
    node = machine.node
    inside = _inside(_Place(node, node.name, node.edges, node.peer_access, crossing.local))
    card_kind, rate = _cards(machine) if crossing.nodes > 1 else ("", 0.0)
    return Group(
        devices=crossing.devices,
        nodes=crossing.nodes,
        kind=inside.kind,
        generation=inside.generation,
        ring_bytes_per_s=inside.ring,
        exchange_bytes_per_s=inside.exchange,
        card_kind=card_kind,
        cards_bytes_per_s=crossing.cards * rate,
        cards=crossing.cards,
        sharing=crossing.sharing,
        node=node.name,
        device=node.device.name,
    )


@functools.lru_cache(maxsize=512)
def _inside(place: _Place) -> _Inside:
    if len(place.local) == 1:
        return _Inside(kind="nvlink", generation=0.0, ring=0.0, exchange=0.0)
    rings = ring_bandwidth(place.node, place.local)
    first = rings.rings[0]
    link = pair(place.node, first[0], first[1]).route.edges[0].link
    exchange = rings.bytes_per_s
    if rings.kind == "links":
        exchange = _mesh_exchange(place.node, place.local, link)
    if rings.kind in ("pcie", "staged"):
        first_device = f"gpu{place.local[0]}"
        link = next(
            (edge.link for edge in place.node.edges if edge.link.kind == "pcie" and first_device in (edge.a, edge.b)),
            link,
        )
    return _Inside(
        kind=_kind(rings, link, place.node), generation=generation(link), ring=rings.bytes_per_s, exchange=exchange
    )


def _kind(rings: RingSet, link: Link, node: Node) -> LinkKind:
    if rings.kind == "switch":
        return "nvswitch"
    if rings.kind == "links":
        return "xgmi" if link.kind == "xgmi" else "nvlink"
    if rings.kind == "pcie":
        return "pcie"
    return "virtual" if node.title.startswith(CLOUDS) else "host"


def generation(link: Link) -> float:
    """Number in the name of a link, such as 3 of "nvlink3"."""
    found = re.search(r"\d+", link.name)
    return float(found.group()) if found else 0.0


def _mesh_exchange(node: Node, local: Sequence[int], link: Link) -> float:
    """Rate of a device in an exchange of all with all over their own links [bytes/s].

    Pairs without a link go over the devices that have links to both, shared out by the width of those ways. The busiest
    link decides.
    """
    load: dict[tuple[str, str], float] = {}
    rate: dict[tuple[str, str], float] = {}
    inside = {f"gpu{number}" for number in local}
    for a in local:
        for b in local:
            if a == b:
                continue
            found = pair(node, a, b)
            ways = (
                [found.route] if found.kind == "links" else [w for w in relays(node, a, b) if set(w.vertices) <= inside]
            )
            if not ways:
                return min(found.bytes_per_s, ring_rate(link))
            width = sum(way.bytes_per_s for way in ways)
            for way in ways:
                for start, end, edge in zip(way.vertices, way.vertices[1:], way.edges, strict=False):
                    load[start, end] = load.get((start, end), 0.0) + way.bytes_per_s / width
                    rate[start, end] = ring_rate(edge.link) * edge.count
    return (len(local) - 1) / max(load[step] / rate[step] for step in load)


def _cards(machine: Machine) -> tuple[CardKind, float]:
    """Kind and rate of a network card."""
    _, link = fabric_of(machine)
    if "efa" in link.name or link.kind == "efa":
        return "efa", link.bytes_per_s
    if link.kind == "infiniband" or "roce" in link.name:
        return "infiniband", link.bytes_per_s
    return "ethernet", link.bytes_per_s
