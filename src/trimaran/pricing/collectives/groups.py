"""A group of devices as input of the collective model: its links, and how the time is measured.

A machine of the catalog and a measured machine have the same description.

The links between the devices of a group, from the link graph of their machine.

A library of collectives runs around rings (`cluster.rings` finds them): over links of the devices' own where a ring of
them exists, else over PCIe, or through host memory where devices have no access to each other, which in a virtual
machine is slower still. An exchange of all with all uses every link; pairs without one are served through a device in
between.

Left out: other traffic on these links than that of equal groups.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from trimaran.machine.rings import RingSet, ring_bandwidth, ring_rate
from trimaran.machine.topology import pair, relays
from trimaran.machine.types import Link, Machine, Node
from trimaran.pricing.collectives.links import Crossing, fabric_of, first_devices

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
