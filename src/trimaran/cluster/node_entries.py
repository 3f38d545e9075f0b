"""From a table of a catalog file to a node. A node may be like another one; what it says itself goes first.

Checked are the ends of every link, that each device is joined to the others, and that counts agree.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from trimaran.cluster.catalog import CatalogDevice
from trimaran.cluster.link_lines import LinkLine, edges_of, read_line, vertex_number
from trimaran.cluster.machines import Edge, LinkType, Node
from trimaran.cluster.prices import Price, parse_price
from trimaran.cluster.reading import Table
from trimaran.errors import InputError

Found = TypeVar("Found")

_KEYS = (
    *("name", "title", "aliases", "like", "device", "usual", "devices", "links", "bridges", "peer_access", "network"),
    *("cores", "host_memory", "caveat", "source", "price"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Where names of a file lead.

    Attributes:
        device: by name
        link: kind of link, by name
        node: table of another node, by name
    """

    device: Callable[[str], CatalogDevice]
    link: Callable[[str], LinkType]
    node: Callable[[str], Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A node as its table and those that it is like say it.

    Attributes:
        devices: how many
        device: name of it; "" where nobody says (a box)
        lines: of links
        bridges: whether devices 0 and 1, 2 and 3, … are bridged
        peer_access: None where nobody says: the device decides
        cores: of the host
        host_memory_bytes: of the host [bytes]
        network: how many cards and of which kind; None: none
        other_network: it differs from the one of the links, whose cards for the network are left out
        caveat: what to bear in mind
    """

    devices: int
    device: str
    lines: tuple[str, ...]
    bridges: bool
    peer_access: bool | None
    cores: int
    host_memory_bytes: int
    network: tuple[int, str] | None
    other_network: bool
    caveat: str


def read_node(entry: Table, names: Names, *, device: CatalogDevice | None = None) -> Node:
    """The node of a table.

    Args:
        entry: of a catalog file or of a user's
        names: where its names lead
        device: to put into it, for a box that names none

    Raises:
        InputError: a figure is missing or wrong, a name is unknown, a device is joined to nothing
    """
    draft = read_draft(entry, names)
    if device is None:
        if not draft.device:
            raise entry.wrong("device", "missing; expected the name of a device")
        device = _named(entry, "device", draft.device, names.device)
    return Node(
        name=entry.text("name"),
        title=entry.text("title", entry.text("name")),
        aliases=entry.texts("aliases", ()),
        device=device,
        devices=draft.devices,
        edges=_edges(entry, draft, device, names),
        peer_access=device.peer_access if draft.peer_access is None else draft.peer_access,
        cpu_cores=draft.cores,
        host_memory_bytes=draft.host_memory_bytes,
        network_cards=draft.network and (draft.network[0], _named(entry, "network", draft.network[1], names.link)),
        caveat=draft.caveat,
        source=entry.text("source"),
        price=read_price(entry),
    )


def read_price(entry: Table) -> Price | None:
    """The price in a table; None where it says none.

    Raises:
        InputError: a text that is no price
    """
    if "price" not in entry:
        return None
    try:
        return parse_price(entry.text("price"))
    except InputError as error:
        raise entry.wrong("price", error.message) from None


def read_draft(entry: Table, names: Names) -> Draft:
    """What a table says, and for the rest the one that it is like."""
    entry.allow(*_KEYS)
    base: Draft | None = None
    if "like" in entry:
        base = read_draft(_named(entry, "like", entry.text("like"), names.node), names)
    devices = entry.whole("devices", base.devices if base else None)
    lines = entry.texts("links", base.lines if base else None)
    bridges = entry.text("bridges", "pairs" if base and base.bridges else "none")
    if bridges not in ("pairs", "none"):
        raise entry.wrong("bridges", f'expected "pairs" or "none", got "{bridges}"')
    own_access = entry.flag("peer_access", default=True) if "peer_access" in entry else None
    return Draft(
        devices=devices,
        device=entry.text("device", base.device if base else "") if "device" in entry or base else "",
        lines=lines,
        bridges=bridges == "pairs",
        peer_access=own_access if own_access is not None or base is None else base.peer_access,
        cores=entry.whole("cores", base.cores if base else 1),
        host_memory_bytes=entry.size("host_memory", base.host_memory_bytes if base else 0),
        network=entry.counted("network") or (base.network if base else None),
        other_network="links" not in entry and ("network" in entry or (base is not None and base.other_network)),
        caveat=entry.text("caveat", (base.caveat if base else "") or " ").strip(),
    )


def fewer_devices(node: Node, devices: int) -> Node:
    """A node with only the first devices of another one, and what joins them.

    Args:
        node: with all of them
        devices: how many of them
    """
    dropped = {f"gpu{number}" for number in range(devices, node.devices)}
    edges = tuple(edge for edge in node.edges if edge.a not in dropped and edge.b not in dropped)
    return replace(node, devices=devices, edges=edges)


def _edges(entry: Table, draft: Draft, device: CatalogDevice, names: Names) -> tuple[Edge, ...]:
    edges: dict[tuple[str, str, str], Edge] = {}
    for index, text in enumerate(draft.lines):
        if draft.other_network and "like" in entry and " nic" in text:
            continue
        try:
            line = _filled(read_line(text), device)
            read = tuple(edges_of(line, names.link))
        except InputError as error:
            raise entry.wrong(f"links[{index}]", error.message) from None
        for edge in read:
            if not all(_present(vertex, draft.devices) for vertex in (edge.a, edge.b)):
                if "like" not in entry:
                    raise entry.wrong(f"links[{index}]", f'"{text}" names a device past the last of {draft.devices}')
                continue
            key = (edge.a, edge.b, edge.link.name)
            edges[key] = replace(edge, count=edge.count + edges[key].count) if key in edges else edge
    for number in range(0, draft.devices - 1, 2) if draft.bridges and device.links else ():
        a, b = f"gpu{number}", f"gpu{number + 1}"
        edges[a, b, device.link] = Edge(a=a, b=b, link=names.link(device.link), count=device.links)
    found = tuple(edges.values())
    _check_joined(entry, found, draft.devices)
    return found


def _filled(line: LinkLine, device: CatalogDevice) -> LinkLine:
    if line.link == "slot":
        return replace(line, link=f"pcie{device.pcie_generation}x{device.pcie_lanes}")
    if line.link == "bridge":
        if not device.links:
            raise InputError(f"{device.title} has no links for a bridge", device=device.name)
        return replace(line, link=device.link, count=device.links)
    return line


def _present(vertex: str, devices: int) -> bool:
    kind, number = vertex_number(vertex)
    return kind != "gpu" or number < devices


def _check_joined(entry: Table, edges: tuple[Edge, ...], devices: int) -> None:
    every = [f"gpu{number}" for number in range(devices)]
    joined = {vertex for edge in edges for vertex in (edge.a, edge.b)}
    isolated = [vertex for vertex in every if vertex not in joined]
    if isolated:
        raise entry.wrong("links", f"{isolated[0]} is joined to nothing: a link is missing")
    together = _reached("gpu0", [step for edge in edges for step in ((edge.a, edge.b), (edge.b, edge.a))])
    apart = [vertex for vertex in every if vertex not in together]
    if apart:
        raise entry.wrong("links", f"no way leads from gpu0 to {', '.join(apart)}: a link is missing")
    # From the host outwards; devices pass nothing on.
    host = [
        (a, b) for edge in edges for a, b in ((edge.a, edge.b), (edge.b, edge.a)) if not a.startswith(("gpu", "nvsw"))
    ]
    with_host = _reached("", [("", vertex) for vertex in joined if vertex.startswith("cpu")] + host)
    without = [vertex for vertex in every if vertex not in with_host]
    if without:
        raise entry.wrong("links", f"no way leads from {without[0]} to the host (cpu0, …): a link is missing")


def _reached(start: str, steps: Iterable[tuple[str, str]]) -> set[str]:
    onward: dict[str, set[str]] = {}
    for a, b in steps:
        onward.setdefault(a, set()).add(b)
    reached, frontier = {start}, [start]
    while frontier:
        for vertex in onward.get(frontier.pop(), set()) - reached:
            reached.add(vertex)
            frontier.append(vertex)
    return reached


def _named(entry: Table, key: str, name: str, find: Callable[[str], Found]) -> Found:
    try:
        return find(name)
    except InputError as error:
        raise entry.wrong(key, error.message) from None
