"""A user's machine: devices, kinds of links, nodes and how many of them, in one TOML file.

Tables have the form of the catalog's own files. What the file does not define is looked up in the catalog. The machine
is `[machine]`, or the only node of the file.

Nodes of several kinds (`nodes = { dgx-a100 = 2, dgx-h100 = 2 }`) stand as equal ones of the slowest kind: in a step
whose work is divided evenly all wait for the slowest device and the slowest link of what they cross, and the smallest
memory limits. Kinds of which none is the slowest in everything are refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from trimaran.base.decoding import decode_toml
from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.files import read_text, toml_text
from trimaran.machine.catalog import (
    CATALOG_NAMES,
    Names,
    Table,
    find_device,
    find_link,
    find_node,
    is_machine,
    link_types,
    named,
    read_device,
    read_link,
    read_node,
    read_price,
)
from trimaran.machine.nccl_topology import node_from_xml
from trimaran.machine.nvidia_smi_topology import node_from_matrix
from trimaran.machine.rings import ring_bandwidth
from trimaran.machine.topology import LEAF_WORDS, leaves_of
from trimaran.machine.types import MOST_NODES, Leaves, Link, Machine, Node, Peak

Found = TypeVar("Found")


def read_machine_file(path: Path) -> Machine:
    """The machine of a file.

    Args:
        path: of a TOML file

    Raises:
        InputError: it cannot be read, is not TOML, or a place in it is wrong: the message names it
    """
    return read_machine(read_text(path), file=str(path))


def read_machine(text: str, *, file: str) -> Machine:
    """The machine of a TOML text.

    Args:
        text: to read
        file: name of it, for messages
    """
    document = Table(decode_toml(text, source=file), file=file)
    document.allow("machine", "nodes", "devices", "links")
    devices = {device.name: device for device in map(read_device, document.tables("devices"))}
    links = {link.name: link for link in map(read_link, document.tables("links"))}
    tables = {entry.text("name"): entry for entry in document.tables("nodes")}
    names = Names(
        device=_first(devices, find_device, "device"),
        link=_first(links, find_link, "link"),
        node=_first(tables, CATALOG_NAMES.node, "machine"),
    )
    nodes = {name: _as_in_catalog(read_node(entry, names), tables) for name, entry in tables.items()}
    machine = document.table("machine")
    machine.allow("node", "nodes", "fabric", "price", *LEAF_WORDS)
    if isinstance(machine.values.get("nodes"), dict):
        return _several_kinds(machine, tables, nodes, names)
    return _machine(machine, tables, nodes, names)


def _as_in_catalog(node: Node, tables: Mapping[str, Table]) -> Node:
    """A node of a file with the one of the catalog that it is like, where it has the same devices and links."""
    name = node.name
    while name in tables:
        if "like" not in tables[name]:
            return node
        name = tables[name].text("like")
    if not is_machine(name):
        return node
    like = find_node(name)
    wired = (like.device, like.devices, like.edges, like.peer_access)
    return replace(node, like=like) if (node.device, node.devices, node.edges, node.peer_access) == wired else node


def _machine(machine: Table, tables: Mapping[str, Table], nodes: Mapping[str, Node], names: Names) -> Machine:
    if not nodes and "node" not in machine:
        raise InputError(
            f"{machine.file}: nodes: missing; expected at least one table headed [[nodes]], or a machine of the "
            'catalog, as node = "dgx-a100" under [machine]',
            code="machine-file.no-nodes",
        )
    name = machine.text("node", next(iter(nodes)) if len(nodes) == 1 else None)
    if name not in nodes:
        if not is_machine(name):
            raise machine.wrong("node", f'unknown node "{name}"{did_you_mean(name, nodes)}')
        nodes = {name: find_node(name)}
    count = machine.whole("nodes", 1, most=MOST_NODES)
    _check_used(machine, tables, {name: count})
    fabric = _fabric(machine, names)
    if count > 1 and (fabric or nodes[name].network_cards) is None:
        raise machine.wrong("fabric", f'missing; expected what joins {count} nodes, such as "1 ethernet-25g"')
    node = replace(nodes[name], price=read_price(machine) or nodes[name].price)
    return Machine(
        node=node,
        nodes=count,
        fabric=(fabric or node.network_cards) if count > 1 else fabric,
        leaves=_leaves(machine, node),
    )


def _check_used(machine: Table, tables: Mapping[str, Table], counts: Mapping[str, int]) -> None:
    """Refuse a node of the file that the machine has none of and no other one is like."""
    used = set(counts)
    for name in counts:
        step = name
        while step in tables and "like" in tables[step] and tables[step].text("like") not in used:
            step = tables[step].text("like")
            used.add(step)
    left = [name for name in tables if name not in used]
    if left:
        has = ", ".join(f"{count} {name}" for name, count in counts.items())
        kinds = ", ".join(f'"{name}" = {count}' for name, count in (*counts.items(), *((name, 1) for name in left)))
        raise InputError(
            f'{machine.file}: nodes: the machine has {has}, and none of "{left[0]}", which would be left out: say how '
            f"many there are of each, as in nodes = {{ {kinds} }} under [machine], or take that table out",
            code="machine-file.second-node",
            file=machine.file,
            node=left[0],
        )


def _several_kinds(machine: Table, tables: Mapping[str, Table], own: Mapping[str, Node], names: Names) -> Machine:
    """Nodes of several kinds as equal ones of the slowest."""
    if "node" in machine:
        raise machine.wrong("node", "nodes says how many there are of each kind; leave this out")
    said = machine.table("nodes")
    counts = {name: said.whole(name, most=MOST_NODES) for name in said.values}
    if not counts:
        raise machine.wrong("nodes", 'expected how many there are of each kind, such as { "dgx-a100" = 2 }')
    nodes = {name: own[name] if name in own else named(said, name, name, find_node) for name in counts}
    _check_used(machine, tables, counts)
    count = sum(counts.values())
    if count > MOST_NODES:
        raise machine.wrong("nodes", f"a machine has at most {MOST_NODES:,} nodes, not {count:,}")
    fabric = _fabric(machine, names)
    slowest = [
        name
        for name, node in nodes.items()
        if not any(faster_in(node, other, cards=fabric is None) for other in nodes.values())
    ]
    if not slowest:
        first, second = list(nodes)[:2]
        better = [
            f"{a} is ahead in {faster_in(nodes[a], nodes[b], cards=fabric is None)}"
            for a, b in ((first, second), (second, first))
        ]
        raise InputError(
            f"{machine.file}: machine.nodes: no kind of node is the slowest in everything ({'; '.join(better)}), "
            "so that a step whose work is divided evenly has no price here: plan for the nodes of one kind, in a file",
            code="machine-file.no-slowest-node",
            file=machine.file,
        )
    node = nodes[slowest[0]]
    if count > 1 and (fabric or node.network_cards) is None:
        raise machine.wrong("fabric", f'missing; expected what joins {count} nodes, such as "1 ethernet-25g"')
    parts = " and ".join(f"{number} {name}" for name, number in counts.items())
    prices = {each.price for each in nodes.values()}
    memories = [each.host_memory_bytes for each in nodes.values()]
    node = replace(
        node,
        title=node.title if len(nodes) == 1 else f"{node.title}, the slowest of {parts}",
        cpu_cores=min(each.cpu_cores for each in nodes.values()),
        host_memory_bytes=min(memories),
        caveat="; ".join(part for part in (node.caveat, f"of {parts} all count as {slowest[0]}") if part),
        price=read_price(machine) or (prices.pop() if len(prices) == 1 else None),
    )
    return Machine(
        node=node,
        nodes=count,
        fabric=(fabric or node.network_cards) if count > 1 else fabric,
        leaves=_leaves(machine, node),
        kinds=tuple(counts.items()) if len(counts) > 1 else (),
    )


def faster_in(a: Node, b: Node, *, cards: bool = True) -> str:
    """What of a node is faster or larger than of another one, in words; empty: nothing.

    Args:
        a: node
        b: another one
        cards: whether their cards for the network count

    Example:
        >>> from trimaran.machine.catalog import find_node
        >>> old, new = find_node("dgx-a100"), find_node("dgx-h100")
        >>> faster_in(old, new), faster_in(new, old)
        ('', 'bf16')
    """
    if a.devices != b.devices:
        return f"{a.devices} devices, not {b.devices}"
    mine, other = a.device, b.device
    for precision, peak in sorted(mine.compute.items()):
        known = other.compute.get(precision)
        if known is None or peak.flops_per_s > known.flops_per_s:
            return precision
        if _rate(peak) > _rate(known):
            return f"{precision} as products reach it"
    figures = {
        "memory": (mine.usable_bytes, other.usable_bytes),
        "bandwidth": (mine.bandwidth.bytes_per_s, other.bandwidth.bytes_per_s),
        "copies to its host": (mine.copies.to_host_bytes_per_s, other.copies.to_host_bytes_per_s),
        "copies from its host": (mine.copies.to_device_bytes_per_s, other.copies.to_device_bytes_per_s),
        "links between devices": (_ring(a), _ring(b)),
        "cards": (_cards_rate(a), _cards_rate(b)) if cards else (0.0, 0.0),
    }
    return next((what for what, (one, another) in figures.items() if one > another), "")


def _rate(peak: Peak) -> float:
    return peak.flops_per_s * peak.fraction


def _ring(node: Node) -> float:
    return ring_bandwidth(node, range(node.devices)).bytes_per_s


def _cards_rate(node: Node) -> float:
    return 0.0 if node.network_cards is None else node.network_cards[0] * node.network_cards[1].bytes_per_s


def _fabric(machine: Table, names: Names) -> tuple[int, Link] | None:
    said = machine.counted("fabric")
    return None if said is None else (said[0], named(machine, "fabric", said[1], names.link))


def _leaves(machine: Table, node: Node) -> Leaves | None:
    said = {key: str(machine.values[key]).lower() for key in LEAF_WORDS if key in machine}
    try:
        return leaves_of(said, node)
    except InputError as error:
        raise machine.wrong(next(iter(said)), error.message) from None


def _first(own: Mapping[str, Found], otherwise: Callable[[str], Found], what: str) -> Callable[[str], Found]:
    def find(name: str) -> Found:
        if name in own:
            return own[name]
        try:
            return otherwise(name)
        except InputError as error:
            hint = did_you_mean(name, own) if own else ""
            if "did you mean" in hint:
                raise InputError(f'unknown {what} "{name}"{hint}') from None
            raise error from None

    return find


# ---------------------------------------------------------------------------------------------------------------------
# A node as a table of a user's file, so that an imported node can be kept, corrected and asked for by name


def node_text(node: Node) -> str:
    """The TOML of a node. Its device is named; kinds of links that the catalog does not list are written out.

    Args:
        node: to write

    Returns:
        A text that `read_machine` reads as the same node.
    """
    values: dict[str, object] = {
        "name": node.name,
        "title": node.title,
        "device": node.device.name,
        "devices": node.devices,
        "peer_access": node.peer_access,
        "cores": node.cpu_cores,
    }
    if node.host_memory_bytes:
        values["host_memory"] = f"{node.host_memory_bytes} B"
    if node.network_cards is not None:
        values["network"] = f"{node.network_cards[0]} {node.network_cards[1].name}"
    if node.caveat:
        values["caveat"] = node.caveat
    values["source"] = node.source
    values["links"] = [
        f"{edge.a} {edge.b} {edge.link.name}{f' x{edge.count}' if edge.count > 1 else ''}" for edge in node.edges
    ]
    own = {edge.link.name: edge.link for edge in node.edges if link_types().get(edge.link.name) != edge.link}
    links = [f"[[links]]\n{toml_text(_link_values(link))}" for link in own.values()]
    return "\n".join([*links, f"[[nodes]]\n{toml_text(values)}"])


def _link_values(link: Link) -> dict[str, object]:
    values: dict[str, object] = {
        "name": link.name,
        "kind": link.kind,
        "raw": f"{link.raw_bytes_per_s / 1e9!r} GB/s",
        "sustained": f"{link.bytes_per_s / 1e9!r} GB/s",
        "latency": f"{link.latency_s * 1e6!r} us",
        "source": link.source,
    }
    if link.ring_bytes_per_s:
        values["ring"] = f"{link.ring_bytes_per_s / 1e9!r} GB/s"
    if link.access:
        values["access"] = link.access
    if link.hop_s:
        values["hop"] = f"{link.hop_s * 1e6!r} us"
    if link.reach[1]:
        values["reach"] = list(link.reach)
    return values


# ---------------------------------------------------------------------------------------------------------------------
# A node from a file that some program wrote, whichever of the known ones it was


def import_node(path: Path, device: str | None = None, network: str | None = None) -> Node:
    """The node of a file: NCCL's topology, or what `nvidia-smi topo -m` printed.

    Args:
        path: of the file
        device: name of the device that the node has; needed where the file does not say it
        network: kind of the cards for the network, where the file does not say it

    Raises:
        InputError: the file cannot be read, or a place in it is wrong, or the device must be named
    """
    text = read_text(path)
    name = path.stem
    known = None if device is None else find_device(device)
    if text.lstrip().startswith("<"):
        return node_from_xml(text, file=str(path), device=known, name=name)
    if known is None:
        raise InputError(
            f"{path}: what nvidia-smi prints does not say which device it is: name it with --device",
            code="smi-matrix.needs-device",
            file=str(path),
        )
    return node_from_matrix(text, known, file=str(path), name=name, network=find_link(network) if network else None)
