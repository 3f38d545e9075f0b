"""Ways through the link graph of a node, from one vertex to another."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from trimaran.cluster.machines import Edge, Node
from trimaran.errors import InputError

DIRECT = frozenset(("nvlink", "xgmi"))
"""Kinds of links between devices, over switches for them or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A way from one vertex to another.

    Attributes:
        vertices: on the way, both ends included
        edges: between them
        bytes_per_s: of the narrowest, in one direction [bytes/s]
        latency_s: of a small message, the largest of any edge [s]
    """

    vertices: tuple[str, ...]
    edges: tuple[Edge, ...]
    bytes_per_s: float
    latency_s: float


def host_route(node: Node, device: int) -> Route:
    """The way from a device to its nearest socket.

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
        raise InputError(f"{node.name}: no way leads from gpu{device} to the host: a link is missing", device=device)
    return min(found, key=lambda route: len(route.edges))


def shortest(node: Node, a: str, b: str, usable: Callable[[Edge], bool]) -> Route:
    """The shortest way; of equal ones the first in the order of the node's edges."""
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
        raise InputError(f"{node.name}: no way leads from {a} to {b}: a link is missing", a=a, b=b)
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
    """The way over these vertices."""
    edges = tuple(neighbours[a][b] for a, b in pairwise(vertices))
    return Route(
        vertices=vertices,
        edges=edges,
        bytes_per_s=min(_copied(edge) for edge in edges),
        latency_s=max(edge.link.latency_s for edge in edges),
    )


def _copied(edge: Edge) -> float:
    """What a copy gets of an edge. By way of memory it can fill a link between sockets; peer traffic cannot."""
    return edge.link.raw_bytes_per_s * edge.count if edge.link.kind == "socket" else edge.bytes_per_s
