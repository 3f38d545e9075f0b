"""A user's machine: devices, kinds of links, nodes and how many of them, in one TOML file.

Tables have the form of the catalog's own files. What the file does not define is looked up in the catalog. The machine
is `[machine]`, or the only node of the file.
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
    link_types,
    named,
    read_device,
    read_link,
    read_node,
    read_price,
)
from trimaran.machine.nccl_topology import node_from_xml
from trimaran.machine.nvidia_smi_topology import node_from_matrix
from trimaran.machine.types import MOST_NODES, Link, Machine, Node

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
    nodes = {name: read_node(entry, names) for name, entry in tables.items()}
    machine = document.table("machine")
    return _machine(machine, nodes, names)


def _machine(machine: Table, nodes: Mapping[str, Node], names: Names) -> Machine:
    if not nodes:
        raise InputError(
            f"{machine.file}: nodes: missing; expected at least one table headed [[nodes]]",
            code="machine-file.no-nodes",
        )
    machine.allow("node", "nodes", "fabric", "price")
    name = machine.text("node", next(iter(nodes)) if len(nodes) == 1 else None)
    if name not in nodes:
        raise machine.wrong("node", f'unknown node "{name}"{did_you_mean(name, nodes)}')
    count = machine.whole("nodes", 1, most=MOST_NODES)
    fabric = _fabric(machine, names) or nodes[name].network_cards
    if count > 1 and fabric is None:
        raise machine.wrong("fabric", f'missing; expected what joins {count} nodes, such as "1 ethernet-25g"')
    node = replace(nodes[name], price=read_price(machine) or nodes[name].price)
    return Machine(node=node, nodes=count, fabric=fabric if count > 1 else None)


def _fabric(machine: Table, names: Names) -> tuple[int, Link] | None:
    said = machine.counted("fabric")
    return None if said is None else (said[0], named(machine, "fabric", said[1], names.link))


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


def _link_values(link: Link) -> dict[str, str]:
    values = {
        "name": link.name,
        "kind": link.kind,
        "raw": f"{link.raw_bytes_per_s / 1e9!r} GB/s",
        "sustained": f"{link.bytes_per_s / 1e9!r} GB/s",
        "latency": f"{link.latency_s * 1e6!r} us",
        "source": link.source,
    }
    if link.ring_bytes_per_s:
        values["ring"] = f"{link.ring_bytes_per_s / 1e9!r} GB/s"
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
