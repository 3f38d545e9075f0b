"""Names of the links that transfers occupy on a machine: links of devices, edges of the tree, cards of nodes.

A name says the node, the ends and the direction: "n0 gpu0>gpu3", "n0 gpu2 out" (to switches), "n1 card0 in".
"""

from collections.abc import Sequence

from trimaran.cluster.machines import Edge, Machine, Node
from trimaran.cluster.routes import DIRECT
from trimaran.cluster.topology import pair, switch_links
from trimaran.errors import InputError


def cards_of(node: Node, count: int, chosen: Sequence[int]) -> tuple[int, ...]:
    """Cards of a node that some devices send by: cards are dealt out evenly, and a device may have several."""
    if count >= node.devices:
        each = count // node.devices
        return tuple(card for number in sorted(chosen) for card in range(number * each, (number + 1) * each))
    return tuple(sorted({number * count // node.devices for number in chosen}))


def _card_names(machine: Machine, host: int, chosen: Sequence[int], direction: str) -> tuple[str, ...]:
    if machine.fabric is None:
        raise InputError(
            f"{machine.node.name}: {machine.nodes} nodes have nothing between them; name a fabric, such as "
            f'"{machine.node.name}:{machine.nodes}@ethernet-25g"'
        )
    return tuple(f"n{host} card{card} {direction}" for card in cards_of(machine.node, machine.fabric[0], chosen))


def message_links(machine: Machine, source: int, target: int) -> tuple[str, ...]:
    """Links of a message from one device to another."""
    each = machine.node.devices
    (host, a), (other, b) = divmod(source, each), divmod(target, each)
    if host != other:
        return (*_card_names(machine, host, [a], "out"), *_card_names(machine, other, [b], "in"))
    node = machine.node
    if not _linked(node, a, b) and min(switch_links(node, a), switch_links(node, b)):
        return (f"n{host} gpu{a} out", f"n{host} gpu{b} in")
    return _route_links(node, host, a, b)


def _route_links(node: Node, host: int, a: int, b: int) -> tuple[str, ...]:
    """Names of the links of a copy within a node that have no room for two of them."""
    found = pair(node, a, b)
    vertices = found.route.vertices
    steps = zip(vertices, vertices[1:], found.route.edges, strict=False)
    return tuple(f"n{host} {one}>{two}" for one, two, edge in steps if _is_full(edge, found.bytes_per_s))


def _is_full(edge: Edge, bytes_per_s: float) -> bool:
    """Whether a second copy beside a first one would slow both down."""
    return 2 * bytes_per_s > edge.link.raw_bytes_per_s * edge.count


def _linked(node: Node, a: int, b: int) -> bool:
    ends = {f"gpu{a}", f"gpu{b}"}
    return any(edge.link.kind in DIRECT and {edge.a, edge.b} == ends for edge in node.edges)


def group_links(machine: Machine, host: int, local: Sequence[int], crosses: bool) -> tuple[str, ...]:
    """Links of a collective's members on one node, in both directions."""
    node = machine.node
    names: dict[str, None] = {}
    if crosses:
        for direction in ("out", "in"):
            names.update(dict.fromkeys(_card_names(machine, host, local, direction)))
    if len(local) < 2:
        return tuple(names)
    if min(switch_links(node, number) for number in local):
        names.update(dict.fromkeys(f"n{host} gpu{number} {way}" for number in local for way in ("out", "in")))
        return tuple(names)
    direct = [(a, b) for a in local for b in local if a != b and _linked(node, a, b)]
    ring = [step for a, b in zip(local, [*local[1:], local[0]], strict=True) for step in ((a, b), (b, a))]
    for a, b in direct or ring:
        names.update(dict.fromkeys(_route_links(node, host, a, b)))
    return tuple(names)
