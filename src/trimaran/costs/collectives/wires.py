"""What joins the devices of a group, told from the link graph of their machine.

A library of collectives runs around rings (`cluster.rings` finds them): over links of the devices' own where a ring of
them exists, else over PCIe, or through host memory where devices have no access to each other, which in a virtual
machine is slower still. An exchange of all with all uses every link; pairs without one are served through a device in
between.

Left out: what other traffic shares these wires.
"""

import functools
import re
from dataclasses import dataclass, field

from trimaran.cluster.machines import LinkType, Machine, Node
from trimaran.cluster.rings import RingSet, ring_bandwidth, ring_rate
from trimaran.cluster.topology import pair, relays
from trimaran.costs.collectives.groups import CardKind, Group, LinkKind
from trimaran.errors import InputError
from trimaran.units import format_count

CLOUDS = ("AWS ", "Azure ", "Google Cloud ", "Lambda Cloud")
"""How titles of rented machines begin."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The first devices of a node, as a key: two are the same if their links are."""

    node: Node = field(compare=False)
    name: str
    edges: tuple[object, ...] = field(hash=False)
    peer_access: bool
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inside:
    """What joins devices of one node; rates in bytes/s."""

    kind: LinkKind
    generation: float
    ring: float
    exchange: float


def group_of(machine: Machine, devices: int, nodes: int = 1) -> Group:
    """The group of the first devices of each node.

    Args:
        machine: what they sit in
        devices: in all, equally many on each node
        nodes: in use

    Returns:
        What the model of a collective needs to know of them.

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
    inside = _inside(_Place(node, node.name, node.edges, node.peer_access, devices // nodes))
    card_kind, count, rate = _cards(machine, nodes)
    return Group(
        devices=devices,
        nodes=nodes,
        kind=inside.kind,
        generation=inside.generation,
        ring_bytes_per_s=inside.ring,
        exchange_bytes_per_s=inside.exchange,
        card_kind=card_kind,
        cards_bytes_per_s=count * rate,
        cards=count,
        node=node.name,
        device=node.device.name,
    )


@functools.lru_cache(maxsize=512)
def _inside(place: _Place) -> _Inside:
    if place.count == 1:
        return _Inside(kind="nvlink", generation=0.0, ring=0.0, exchange=0.0)
    rings = ring_bandwidth(place.node, range(place.count))
    first = rings.rings[0]
    link = pair(place.node, first[0], first[1]).route.edges[0].link
    exchange = rings.bytes_per_s
    if rings.kind == "links":
        exchange = _mesh_exchange(place.node, place.count, link)
    if rings.kind in ("pcie", "staged"):
        link = next(
            (edge.link for edge in place.node.edges if edge.link.kind == "pcie" and "gpu0" in (edge.a, edge.b)), link
        )
    return _Inside(
        kind=_kind(rings, link, place.node), generation=generation(link), ring=rings.bytes_per_s, exchange=exchange
    )


def _kind(rings: RingSet, link: LinkType, node: Node) -> LinkKind:
    if rings.kind == "switch":
        return "nvswitch"
    if rings.kind == "links":
        return "xgmi" if link.kind == "xgmi" else "nvlink"
    if rings.kind == "pcie":
        return "pcie"
    return "virtual" if node.title.startswith(CLOUDS) else "host"


def generation(link: LinkType) -> float:
    """Number in the name of a link, such as 3 of "nvlink3"."""
    found = re.search(r"\d+", link.name)
    return float(found.group()) if found else 0.0


def _mesh_exchange(node: Node, count: int, link: LinkType) -> float:
    """Rate of a device in an exchange of all with all over their own links [bytes/s].

    Pairs without a link go over the devices that have links to both, shared out by the width of those ways. The busiest
    link decides.
    """
    load: dict[tuple[str, str], float] = {}
    rate: dict[tuple[str, str], float] = {}
    for a in range(count):
        for b in range(count):
            if a == b:
                continue
            found = pair(node, a, b)
            inside = {f"gpu{index}" for index in range(count)}
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
    return (count - 1) / max(load[step] / rate[step] for step in load)


def _cards(machine: Machine, nodes: int) -> tuple[CardKind, int, float]:
    if nodes == 1:
        return "", 0, 0.0
    fabric = machine.fabric or machine.node.network_cards
    if fabric is None:
        raise InputError(
            f"{machine.node.name}: {nodes} nodes have nothing between them; name a fabric, such as "
            f'"{machine.node.name}:{nodes}@ethernet-25g"',
            nodes=nodes,
        )
    count, link = fabric
    kind: CardKind = "ethernet"
    if "efa" in link.name or link.kind == "efa":
        kind = "efa"
    elif link.kind == "infiniband" or "roce" in link.name:
        kind = "infiniband"
    return kind, count, link.bytes_per_s
