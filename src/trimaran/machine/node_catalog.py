"""Nodes of the catalog by name, and a node for a device whose machine is not named.

A module (SXM, OAM) is on the board that its maker sells it on; a card is in a plain box with the slots that are
asked for. Cards of PCIe 3.0 get the boxes of their time, where switches join pairs of them.

Links of a node, a line each: two ends, a kind, how many.

    "gpu0 gpu3 nvlink2 x2"            two links between two devices
    "plx0 gpu0-3 pcie4x16"            one from the switch to each of four
    "gpu0-7 nvsw0-5 nvlink3 x2"       two from every device to every switch
    "plx0-3 gpu0-7 pcie4x16 in turn"  the first switch has the first two devices, the second the next two
    "gpu0 gpu2,5 nvlink1"             to two that do not follow one another

"slot" stands for the slot of the device, "bridge" for all its links to others.

From a table of a catalog file to a node. A node may be like another one; what it says itself goes first.

Checked are the ends of every link, that each device is joined to the others, and that counts agree.
"""

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from trimaran.base.errors import InputError, did_you_mean
from trimaran.machine.catalog import entries_of, find_device, find_link, squeezed
from trimaran.machine.toml_tables import Table
from trimaran.machine.types import Device, Edge, Link, Node, Price, parse_price

MOST_DEVICES = 1024
"""Of a node; the largest ones of today have less than a tenth."""

MOST_EDGES = 100_000
"""Of a node."""

KINDS = ("gpu", "cpu", "plx", "nvsw", "nic")
"""Devices, sockets of the host, PCIe switches, NVLink switches, cards for the network."""

_END = re.compile(r"([a-z]+)([0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*)")
_COUNT = re.compile(r"x([1-9][0-9]{0,3})")
_FORM = 'expected a line such as "gpu0 gpu3 nvlink2 x2"'


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLine:
    """A line, read.

    Attributes:
        pairs: of vertices that it joins
        link: name of a kind of link, or "slot", or "bridge"
        count: of parallel links of each pair
    """

    pairs: tuple[tuple[str, str], ...]
    link: str
    count: int


def read_line(text: str) -> LinkLine:
    """A line of the form above.

    Raises:
        InputError: it is of another form

    Example:
        >>> read_line("plx0 gpu0-1 pcie3x16").pairs
        (('plx0', 'gpu0'), ('plx0', 'gpu1'))
    """
    words = text.split()
    in_turn = words[-2:] == ["in", "turn"]
    words = words[:-2] if in_turn else words
    count = _COUNT.fullmatch(words[-1]) if len(words) == 4 else None
    if len(words) != 3 and count is None:
        raise InputError(f'{_FORM}, got "{text}"', code="link-line.malformed", line=text)
    left, right = tuple(_vertices(words[0], text)), tuple(_vertices(words[1], text))
    if in_turn:
        if len(right) % len(left):
            raise InputError(
                f'{len(right)} vertices cannot be dealt to {len(left)} in turn, in "{text}"',
                code="link-line.not-divisible",
                line=text,
            )
        share = len(right) // len(left)
        pairs = tuple((left[index // share], vertex) for index, vertex in enumerate(right))
    else:
        if len(left) * len(right) > MOST_EDGES:
            raise InputError(
                f'"{text}" joins {len(left)} vertices to {len(right)}; a node has at most {MOST_EDGES:,} links',
                code="link-line.too-many-pairs",
                line=text,
            )
        pairs = tuple((a, b) for a in left for b in right)
    loops = [a for a, b in pairs if a == b]
    if loops:
        raise InputError(f'"{text}" joins {loops[0]} to itself', code="link-line.joins-itself", line=text)
    return LinkLine(pairs=pairs, link=words[2], count=int(count[1]) if count else 1)


def edges_of(line: LinkLine, find: Callable[[str], Link]) -> Iterator[Edge]:
    """The edges of a line.

    Args:
        line: read
        find: kind of link by name
    """
    link = find(line.link)
    for a, b in line.pairs:
        yield Edge(a=a, b=b, link=link, count=line.count)


def vertex_number(vertex: str) -> tuple[str, int]:
    """Kind and number of a vertex.

    Example:
        >>> vertex_number("gpu12")
        ('gpu', 12)
    """
    kind = vertex.rstrip("0123456789")
    return kind, int(vertex[len(kind) :])


def _vertices(text: str, line: str) -> Iterator[str]:
    found = _END.fullmatch(text)
    if found is None or found[1] not in KINDS:
        expected = f'expected a vertex such as "gpu0" or "plx0-3" (one of {", ".join(KINDS)})'
        raise InputError(f'{expected}, got "{text}" in "{line}"', code="link-line.bad-vertex", line=line)
    for part in found[2].split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise InputError(
                f'the range "{part}" runs backwards, in "{line}"', code="link-line.range-backwards", line=line
            )
        for number in range(int(first), int(last or first) + 1):
            yield f"{found[1]}{number}"


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

    device: Callable[[str], Device]
    link: Callable[[str], Link]
    node: Callable[[str], Table]


_MOST_LIKE = 20
"""Tables of which each is like the next."""

_OWN = ("name", "title", "aliases", "like", "source", "price", "usual")
"""Keys that a table does not take over from the one that it is like."""


def read_node(entry: Table, names: Names, *, device: Device | None = None) -> Node:
    """The node of a table.

    Args:
        entry: of a catalog file or of a user's
        names: where its names lead
        device: to put into it, for a box that names none

    Raises:
        InputError: a figure is missing or wrong, a name is unknown, a device is joined to nothing
    """
    entry = _completed(entry, names)
    if device is None:
        device = named(entry, "device", entry.text("device"), names.device)
    network = entry.counted("network")
    return Node(
        name=entry.text("name"),
        title=entry.text("title", entry.text("name")),
        aliases=entry.texts("aliases", ()),
        device=device,
        devices=entry.whole("devices", most=MOST_DEVICES),
        edges=_edges(entry, device, names),
        peer_access=entry.flag("peer_access", default=device.peer_access),
        cpu_cores=entry.whole("cores", 1, most=1_000_000),
        host_memory_bytes=entry.size("host_memory", 0),
        network_cards=network and (network[0], named(entry, "network", network[1], names.link)),
        caveat=entry.text("caveat", " ").strip(),
        source=entry.text("source"),
        price=read_price(entry),
    )


def read_price(entry: Table) -> Price | None:
    """The price in a table; None where it says none.

    Raises:
        InputError: a text that is no price
    """
    return named(entry, "price", entry.text("price"), parse_price) if "price" in entry else None


def _completed(entry: Table, names: Names, above: tuple[str, ...] = ()) -> Table:
    """A table with what it takes over from the one that it is like.

    Where it names another network and no links, it has the links of that one without the cards for the network.
    """
    entry.allow(*_KEYS)
    if "like" not in entry:
        return entry
    like = entry.text("like")
    if like in above or len(above) == _MOST_LIKE:
        raise entry.wrong("like", f"{' is like '.join((*above, like))}: name a machine that is complete by itself")
    base = _completed(named(entry, "like", like, names.node), names, (*above, like))
    values = {key: value for key, value in base.values.items() if key not in _OWN} | dict(entry.values)
    if "network" in entry and "links" not in entry:
        values["links"] = [line for line in base.texts("links") if " nic" not in line]
    return Table(values, file=entry.file, path=entry.path)


def fewer_devices(node: Node, devices: int) -> Node:
    """A node with only the first devices of another one, and what joins them.

    Args:
        node: with all of them
        devices: how many of them
    """
    dropped = {f"gpu{number}" for number in range(devices, node.devices)}
    edges = tuple(edge for edge in node.edges if edge.a not in dropped and edge.b not in dropped)
    return replace(node, devices=devices, edges=edges)


def _edges(entry: Table, device: Device, names: Names) -> tuple[Edge, ...]:
    devices, bridges = entry.whole("devices", most=MOST_DEVICES), entry.text("bridges", "none")
    if bridges not in ("pairs", "none"):
        raise entry.wrong("bridges", f'expected "pairs" or "none", got "{bridges}"')
    edges: dict[tuple[str, str, str], Edge] = {}
    for index, text in enumerate(entry.texts("links")):
        try:
            line = _filled(read_line(text), device)
            read = tuple(edges_of(line, names.link))
        except InputError as error:
            raise entry.wrong(f"links[{index}]", error.message) from None
        for edge in read:
            if not all(_present(vertex, devices) for vertex in (edge.a, edge.b)):
                if "like" not in entry:
                    raise entry.wrong(f"links[{index}]", f'"{text}" names a device past the last of {devices}')
                continue
            key = (edge.a, edge.b, edge.link.name)
            if len(edges) == MOST_EDGES:
                raise entry.wrong(f"links[{index}]", f"a node has at most {MOST_EDGES:,} links")
            edges[key] = replace(edge, count=edge.count + edges[key].count) if key in edges else edge
    for number in range(0, devices - 1, 2) if bridges == "pairs" and device.links else ():
        a, b = f"gpu{number}", f"gpu{number + 1}"
        edges[a, b, device.link] = Edge(a=a, b=b, link=names.link(device.link), count=device.links)
    found = tuple(edges.values())
    _check_joined(entry, found, devices)
    return found


def _filled(line: LinkLine, device: Device) -> LinkLine:
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
        raise entry.wrong("links", f"no route leads from gpu0 to {', '.join(apart)}: a link is missing")
    # From the host outwards; devices pass nothing on.
    host = [
        (a, b) for edge in edges for a, b in ((edge.a, edge.b), (edge.b, edge.a)) if not a.startswith(("gpu", "nvsw"))
    ]
    with_host = _reached("", [("", vertex) for vertex in joined if vertex.startswith("cpu")] + host)
    without = [vertex for vertex in every if vertex not in with_host]
    if without:
        raise entry.wrong("links", f"no route leads from {without[0]} to the host (cpu0, …): a link is missing")


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


def named(entry: Table, key: str, name: str, find: Callable[[str], Found]) -> Found:
    """The value that a name in a table stands for.

    Args:
        entry: the table
        key: of the name, for the error
        name: to look up
        find: looks it up

    Raises:
        InputError: there is none; the message has the place in the file
    """
    try:
        return find(name)
    except InputError as error:
        raise entry.wrong(key, error.message) from None


_BOXES = {
    3: ("pcie-1", "pcie-4-switched", "pcie-8-switched", "pcie-10-switched", "pcie-16-switched"),
    4: ("pcie-1", "pcie-4", "pcie-8", "pcie-10-switched", "pcie-16-switched"),
    5: ("pcie-1", "pcie-4", "pcie-8-gen5", "pcie-10-switched", "pcie-16-switched"),
}


@functools.cache
def node_tables() -> Mapping[str, Table]:
    """Every table of the catalog's nodes, by its name."""
    return {entry.text("name"): entry for entry in entries_of("nodes")}


def node_names() -> tuple[str, ...]:
    """Names of all nodes that have devices; boxes are left out."""
    return tuple(name for name, entry in node_tables().items() if "device" in entry or "like" in entry)


@functools.cache
def nodes_by_alias() -> Mapping[str, str]:
    """Names of nodes by their names and aliases, squeezed."""
    return {
        squeezed(alias): name for name in node_names() for alias in (name, *node_tables()[name].texts("aliases", ()))
    }


@functools.cache
def find_node(name: str) -> Node:
    """The node of that name or alias.

    Raises:
        InputError: there is none

    Example:
        >>> find_node("DGX-1 V100").devices
        8
    """
    known = nodes_by_alias()
    if squeezed(name) not in known:
        raise InputError(f'unknown machine "{name}"{nearest_machine(name)}', machine=name)
    return read_node(node_tables()[known[squeezed(name)]], CATALOG_NAMES)


def nearest_machine(name: str) -> str:
    """The end of a sentence that names the nearest machine, where one is near."""
    near = difflib.get_close_matches(squeezed(name), nodes_by_alias(), n=1)
    return (
        f'; did you mean "{nodes_by_alias()[near[0]]}"?' if near else "; `trimaran clusters` lists those that are known"
    )


def is_machine(name: str) -> bool:
    """Whether it is the name or alias of a node."""
    return squeezed(name) in nodes_by_alias()


def usual_node(device: Device) -> Node | None:
    """The usual machine of a module, from its maker; None for a card."""
    name = _usual().get(device.name)
    return find_node(name) if name is not None else None


def plain_node(device: Device, devices: int, *, bridged: bool = False) -> Node:
    """A node for a device whose machine is not named.

    Args:
        device: a module or a card
        devices: the least number, where the node can hold them
        bridged: cards are joined in pairs

    Returns:
        The usual board of a module, with fewer devices than it has where fewer are asked for; or a box of cards.
    """
    node = usual_node(device)
    if node is not None:
        if devices < node.devices:
            node = replace(fewer_devices(node, devices), name=f"{devices}x{device.name}", aliases=())
        return node
    return boxed(device, devices, bridged=bridged)


def boxed(device: Device, devices: int, *, bridged: bool = False) -> Node:
    """A plain box of cards.

    Args:
        device: a card, or a module taken for one
        devices: the least number, at most 16
        bridged: cards are joined in pairs
    """
    boxes = ("superchip-1",) if device.form == "superchip" else _BOXES[min(device.pcie_generation, 5)]
    fitting = [name for name in boxes if node_tables()[name].whole("devices") >= devices]
    name = fitting[0] if fitting else boxes[-1]
    entry = node_tables()[name]
    count = min(devices, entry.whole("devices"))
    bridges = {"bridges": "pairs"} if bridged and device.links else {}
    values = {**entry.values, **bridges, "title": f"{count} {device.title} in a {entry.text('title')}"}
    node = read_node(Table(values, file=entry.file, path=entry.path), CATALOG_NAMES, device=device)
    bridge = "-bridged" if bridges else ""
    return replace(fewer_devices(node, count), name=f"{count}x{device.name}{bridge}")


@functools.cache
def _usual() -> Mapping[str, str]:
    return {
        find_device(entry.text("device")).name: name
        for name, entry in node_tables().items()
        if entry.flag("usual", default=False)
    }


def _table(name: str) -> Table:
    if name not in node_tables():
        raise InputError(f'unknown machine "{name}"{did_you_mean(name, node_tables())}', machine=name)
    return node_tables()[name]


CATALOG_NAMES = Names(device=find_device, link=find_link, node=_table)
"""Names lead to the catalog."""
