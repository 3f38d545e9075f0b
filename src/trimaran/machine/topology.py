"""How two devices of a node reach each other, and what copies share.

Links between devices (NVLink, Infinity Fabric) carry copies directly. Without them a copy goes over PCIe: straight from
device to device where peer access is allowed, and else through memory of the host. Peer access over PCIe ends at the
socket: what crosses from socket to socket is staged. A device in between never relays a copy by itself; routes over one
are found too, since a library may use them.

Rates are of one copy alone. `host_bandwidth` says what several copies at once leave to each; rings are in `rings`.

Between nodes, cards are connected to leaves (`leaves_of` reads what a user says of them). What stays on a leaf has its
cards for itself; what leaves it shares the links to the spine.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.units import whole_number
from trimaran.machine.types import MOST_NODES, Edge, Leaves, Node

# ---------------------------------------------------------------------------------------------------------------------
# Routes through the link graph of a node, from one vertex to another


DIRECT = frozenset(("nvlink", "xgmi"))
"""Kinds of links between devices, over switches for them or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route from one vertex to another.

    Attributes:
        vertices: on the route, both ends included
        edges: between them
        bytes_per_s: of the narrowest, in one direction [bytes/s]
        latency_s: of a small message, the largest of any edge [s]
    """

    vertices: tuple[str, ...]
    edges: tuple[Edge, ...]
    bytes_per_s: float
    latency_s: float


def host_route(node: Node, device: int) -> Route:
    """The route from a device to its nearest socket.

    Raises:
        InputError: there is none
    """
    check_devices(node, (device,))
    cpus = sorted({vertex for edge in node.edges for vertex in (edge.a, edge.b) if vertex.startswith("cpu")})
    found = []
    for cpu in cpus:
        try:
            found.append(shortest(node, f"gpu{device}", cpu, lambda edge: not between_devices(edge)))
        except InputError:
            continue
    if not found:
        raise InputError(f"{node.name}: no route leads from gpu{device} to the host: a link is missing", device=device)
    return min(found, key=lambda route: len(route.edges))


def shortest(node: Node, a: str, b: str, usable: Callable[[Edge], bool]) -> Route:
    """The shortest route; of equal ones the first in the order of the node's edges."""
    neighbours = neighbours_of(node, usable)
    came: dict[str, str] = {a: ""}
    frontier = [a]
    while frontier and b not in came:
        following = []
        for vertex in frontier:
            for other in neighbours.get(vertex, {}):
                if other not in came and (other == b or not other.startswith("gpu")):
                    came[other] = vertex
                    following.append(other)
        frontier = following
    if b not in came:
        raise InputError(f"{node.name}: no route leads from {a} to {b}: a link is missing", a=a, b=b)
    vertices = [b]
    while came[vertices[-1]]:
        vertices.append(came[vertices[-1]])
    return along(neighbours, tuple(reversed(vertices)))


def check_devices(node: Node, devices: Iterable[int]) -> None:
    """Whether a node has these devices, each once.

    Raises:
        InputError: it has not
    """
    chosen = tuple(devices)
    wrong = [number for number in chosen if not 0 <= number < node.devices]
    if wrong:
        raise InputError(
            f"{node.name} has devices 0 to {node.devices - 1}, not {wrong[0]}",
            code="machine.no-such-device",
            device=wrong[0],
            devices=node.devices,
        )
    if len(set(chosen)) < len(chosen):
        raise InputError(
            f"{node.name}: a device is named twice in {', '.join(map(str, chosen))}",
            code="machine.device-named-twice",
            devices=chosen,
        )


def switched(edge: Edge) -> bool:
    """Whether it leads to a switch for devices' links."""
    return edge.a.startswith("nvsw") or edge.b.startswith("nvsw")


def between_devices(edge: Edge) -> bool:
    """Links that no copy to the host takes."""
    return switched(edge) or (edge.a.startswith("gpu") and edge.b.startswith("gpu"))


def neighbours_of(node: Node, usable: Callable[[Edge], bool]) -> dict[str, dict[str, Edge]]:
    """By vertex, those that it is joined to, and by which edge."""
    found: dict[str, dict[str, Edge]] = {}
    for edge in node.edges:
        if usable(edge):
            found.setdefault(edge.a, {})[edge.b] = edge
            found.setdefault(edge.b, {})[edge.a] = edge
    return found


def along(neighbours: Mapping[str, Mapping[str, Edge]], vertices: tuple[str, ...]) -> Route:
    """The route over these vertices."""
    edges = tuple(neighbours[a][b] for a, b in pairwise(vertices))
    return Route(
        vertices=vertices,
        edges=edges,
        bytes_per_s=min(_copied(edge) for edge in edges),
        latency_s=max(edge.link.latency_s for edge in edges),
    )


def _copied(edge: Edge) -> float:
    """Rate of a copy on an edge. A copy through memory can fill a link between sockets; peer traffic cannot."""
    return edge.link.raw_bytes_per_s * edge.count if edge.link.kind == "socket" else edge.bytes_per_s


PairKind = Literal["links", "switch", "pcie", "root", "socket"]
"""The connection of two devices, as `nvidia-smi topo -m` shows it: "links" (NV#), NVLink "switch" (NV#),
one or more switches of "pcie" (PIX, PXB), the "root" of a host's socket (PHB, NODE), two "socket"s (SYS)."""

STAGED = 0.74
"""Share of a PCIe link that a copy through the host's memory sustains: 9.2e9 of 12.4e9 B/s between two P100 that cannot
reach each other (uuudown/Tartan@e3166ab, P2P disabled: 9.2e9 to 10.8e9)."""

THROUGH_ROOT = 0.72
"""Share that peer access sustains through the root of a socket of PCIe 3.0: 8.8e9 of 12.2e9 B/s, 8 TITAN X (Pascal) of
two switches against two of one (baidu-research/DeepBench@da81ba7). Later roots pass it on undiminished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two devices of a node.

    Attributes:
        a: one of them
        b: the other
        kind: of their connection
        links: between them, or to their common switches
        peer: a copy goes straight from one to the other; else it is staged in memory of the host
        route: that a copy takes
        bytes_per_s: of one copy alone, in one direction [bytes/s]
        latency_s: of a small copy [s]
    """

    a: int
    b: int
    kind: PairKind
    links: int
    peer: bool
    route: Route
    bytes_per_s: float
    latency_s: float


def pair(node: Node, a: int, b: int) -> Pair:
    """Two devices of a node.

    Args:
        node: that has them
        a: number of one
        b: number of the other

    Raises:
        InputError: the node has no such device, or no route leads from one to the other

    Example:
        >>> from trimaran.machine.catalog import find_node
        >>> found = pair(find_node("dgx1-v100"), 0, 5)
        >>> found.kind, found.peer, found.route.vertices
        ('socket', False, ('gpu0', 'plx0', 'cpu0', 'cpu1', 'plx2', 'gpu5'))
    """
    check_devices(node, (a, b))
    direct = [edge for edge in node.edges if edge.link.kind in DIRECT and {edge.a, edge.b} == {f"gpu{a}", f"gpu{b}"}]
    if direct:
        links = sum(edge.count for edge in direct)
        rate = sum(edge.bytes_per_s for edge in direct)
        route = Route(
            vertices=(f"gpu{a}", f"gpu{b}"), edges=tuple(direct), bytes_per_s=rate, latency_s=direct[0].link.latency_s
        )
        return _pair(a, b, "links", links, True, route, rate)
    links = min(switch_links(node, a), switch_links(node, b))
    if links:
        route = shortest(node, f"gpu{a}", f"gpu{b}", lambda edge: edge.link.kind in DIRECT and switched(edge))
        link = route.edges[0].link
        return _pair(a, b, "switch", links, True, route, links * link.bytes_per_s)
    route = shortest(node, f"gpu{a}", f"gpu{b}", lambda edge: not between_devices(edge))
    kind = _kind(route)
    peer = node.peer_access and kind in ("pcie", "root")
    share = STAGED if not peer else THROUGH_ROOT if kind == "root" and _old(route) else 1.0
    return _pair(a, b, kind, 0, peer, route, share * route.bytes_per_s)


def pairs(node: Node) -> tuple[Pair, ...]:
    """Every two devices of a node, in order."""
    return tuple(pair(node, a, b) for a, b in combinations(range(node.devices), 2))


def relays(node: Node, a: int, b: int) -> tuple[Route, ...]:
    """Routes over other devices' links where two devices have none between them: the shortest, widest first.

    Example:
        >>> from trimaran.machine.catalog import find_node
        >>> [route.vertices for route in relays(find_node("dgx1-v100"), 0, 5)]
        [('gpu0', 'gpu1', 'gpu5'), ('gpu0', 'gpu4', 'gpu5')]
    """
    check_devices(node, (a, b))
    neighbours = neighbours_of(node, between_devices)
    ways: list[tuple[str, ...]] = [(f"gpu{a}",)]
    while ways and not any(way[-1] == f"gpu{b}" for way in ways):
        ways = [(*way, vertex) for way in ways for vertex in neighbours.get(way[-1], {}) if vertex not in way]
    routes = [along(neighbours, way) for way in ways if way[-1] == f"gpu{b}"]
    return tuple(sorted(routes, key=lambda route: (-route.bytes_per_s, route.vertices)))


def host_bandwidth(node: Node, devices: Iterable[int]) -> Mapping[int, float]:
    """Rate of a copy from the host to each device when all of them copy at once.

    Each copy takes the shortest route from the nearest socket. Links that several use are shared evenly, and what one
    cannot use is left to the others.

    Args:
        node: that has them
        devices: that copy, all in one direction

    Returns:
        By device, its rate [bytes/s].

    Example:
        >>> from trimaran.machine.catalog import find_node
        >>> rates = host_bandwidth(find_node("dgx1-v100"), range(8))
        >>> rates[0] / 1e9
        6.2
    """
    chosen = tuple(devices)
    check_devices(node, chosen)
    return share_evenly({number: host_route(node, number).edges for number in chosen})


def share_evenly(uses: Mapping[int, tuple[Edge, ...]]) -> dict[int, float]:
    """Rates of flows that share edges: all rise together until an edge is full, its flows stop, the rest goes on.

    Args:
        uses: by flow, the edges that it goes over, in one direction

    Returns:
        By flow, its rate [bytes/s].
    """
    room = {edge: edge.bytes_per_s for edges in uses.values() for edge in edges}
    rates: dict[int, float] = {}
    while len(rates) < len(uses):
        waiting = {edge: [flow for flow in uses if flow not in rates and edge in uses[flow]] for edge in room}
        shares = {edge: room[edge] / len(flows) for edge, flows in waiting.items() if flows}
        tightest = min(shares, key=lambda edge: shares[edge])
        for flow in waiting[tightest]:
            rates[flow] = shares[tightest]
            for edge in uses[flow]:
                room[edge] -= shares[tightest]
    return rates


def shared_uplinks(node: Node) -> tuple[tuple[Edge, tuple[int, ...]], ...]:
    """Edges on the routes to the host that several devices share, each with those devices."""
    users: dict[Edge, list[int]] = {}
    for number in range(node.devices):
        for edge in host_route(node, number).edges:
            users.setdefault(edge, []).append(number)
    return tuple((edge, tuple(found)) for edge, found in users.items() if len(found) > 1)


def switch_links(node: Node, device: int) -> int:
    """Links of a device to switches for them."""
    vertex = f"gpu{device}"
    return sum(
        edge.count for edge in node.edges if edge.link.kind in DIRECT and switched(edge) and vertex in (edge.a, edge.b)
    )


def _pair(a: int, b: int, kind: PairKind, links: int, peer: bool, route: Route, rate: float) -> Pair:
    return Pair(a=a, b=b, kind=kind, links=links, peer=peer, route=route, bytes_per_s=rate, latency_s=route.latency_s)


def _kind(route: Route) -> PairKind:
    if any(edge.link.kind == "socket" for edge in route.edges):
        return "socket"
    return "root" if any(vertex.startswith("cpu") for vertex in route.vertices) else "pcie"


def _old(route: Route) -> bool:
    return any(edge.link.name.startswith("pcie3") for edge in route.edges)


# ---------------------------------------------------------------------------------------------------------------------
# Leaves between nodes


MOST_OVERSUBSCRIPTION = 100.0
"""Of a leaf; several times the largest that is built."""

LEAF_WORDS = ("nodes_per_leaf", "oversubscription", "rails")
"""What names and files of machines say of leaves."""


def leaves_of(said: Mapping[str, str], node: Node) -> Leaves | None:
    """The leaves that a user describes; None where nothing is said.

    Rail by rail, a transfer between different cards goes over the links between devices of its node first ("PXN"), so
    nodes without such links are refused: there it would cross the spine.

    Args:
        said: by word of `LEAF_WORDS`: a number of nodes; a ratio such as "2:1" or "1.5"; "true" or "false"
        node: each of the machine's

    Raises:
        InputError: an unknown word, a figure that means nothing, or rails of a node whose devices have no links

    Source:
        NVIDIA, "Doubling all2all Performance with NVIDIA Collective Communication Library 2.12", 2022, for PXN.

    Example:
        >>> from trimaran.machine.catalog import find_node
        >>> str(leaves_of({"nodes_per_leaf": "32", "oversubscription": "2:1"}, find_node("dgx-h100")))
        '32 nodes a leaf, 2:1 above it'
        >>> str(leaves_of({"rails": "true"}, find_node("dgx-h100")))
        'rail by rail, all nodes on one set of leaves'
    """
    for word in said:
        if word not in LEAF_WORDS:
            raise InputError(
                f'unknown word "{word}"{did_you_mean(word, LEAF_WORDS, also=("host_memory",))}; expected one of '
                f"{', '.join(LEAF_WORDS)}, or host_memory",
                code="leaves.unknown-word",
                word=word,
            )
    if not said:
        return None
    by_rail = said.get("rails", "false")
    if by_rail not in ("true", "false"):
        raise InputError(f'rails: expected true or false, got "{by_rail}"', code="leaves.bad-rails", value=by_rail)
    share = whole_number(said.get("nodes_per_leaf", str(MOST_NODES)), least=1, most=MOST_NODES)
    if share is None:
        raise InputError(
            f"nodes_per_leaf: expected a number of nodes from 1 to {MOST_NODES:,}, such as 32, got "
            f'"{said["nodes_per_leaf"]}"',
            code="leaves.bad-node-count",
            value=said["nodes_per_leaf"],
        )
    ratio = _ratio(said.get("oversubscription", "1"))
    if "oversubscription" in said and "nodes_per_leaf" not in said:
        raise InputError(
            f"oversubscription {ratio:g}:1 is that of leaves: say how many nodes share one, as in nodes_per_leaf=32",
            code="leaves.needs-node-count",
            value=said["oversubscription"],
        )
    if by_rail == "true" and node.devices > 1 and not all(_has_links(node, number) for number in range(node.devices)):
        raise InputError(
            f"rails: devices of {node.name} have no links to one another, so that what goes from one card to another "
            "crosses the spine, which has no price here: leave rails out",
            code="leaves.rails-need-links",
            node=node.name,
        )
    return Leaves(nodes=share, oversubscription=ratio, by_rail=by_rail == "true")


def _has_links(node: Node, device: int) -> bool:
    vertex = f"gpu{device}"
    return any(edge.link.kind in DIRECT and vertex in (edge.a, edge.b) for edge in node.edges)


def _ratio(text: str) -> float:
    up, colon, down = text.partition(":")
    try:
        ratio = float(up) / (float(down) if colon else 1.0)
    except (ValueError, ZeroDivisionError):
        ratio = 0.0
    if not 1.0 <= ratio <= MOST_OVERSUBSCRIPTION:
        raise InputError(
            f'oversubscription: expected a ratio from 1:1 to {MOST_OVERSUBSCRIPTION:g}:1, such as 2:1, got "{text}"',
            code="leaves.bad-oversubscription",
            value=text,
        )
    return ratio
