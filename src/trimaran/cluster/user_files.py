"""A user's own machine: devices, kinds of links, nodes and how many of them, in one TOML file.

Tables have the form of the catalog's own files. What the file does not define is looked up in the catalog. The machine
is `[machine]`, or the only node of the file.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from trimaran.cluster.catalog import find_device
from trimaran.cluster.device_entries import read_device
from trimaran.cluster.links import find_link, read_link
from trimaran.cluster.machines import LinkType, Machine, Node
from trimaran.cluster.node_entries import Names, read_node, read_price
from trimaran.cluster.plain_machines import CATALOG_NAMES
from trimaran.cluster.reading import Table, did_you_mean
from trimaran.errors import InputError

Found = TypeVar("Found")


def read_machine_file(path: Path) -> Machine:
    """The machine of a file.

    Args:
        path: of a TOML file

    Raises:
        InputError: it cannot be read, is not TOML, or a place in it is wrong: the message names it
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", code="machine-file.unreadable", file=str(path)) from None
    return read_machine(text, file=str(path))


def read_machine(text: str, *, file: str) -> Machine:
    """The machine of a TOML text.

    Args:
        text: to read
        file: name of it, for messages
    """
    try:
        document = Table(tomllib.loads(text), file=file)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file}: not TOML: {error}", code="machine-file.not-toml", file=file) from None
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
    count = machine.whole("nodes", 1)
    fabric = _fabric(machine, names) or nodes[name].network_cards
    if count > 1 and fabric is None:
        raise machine.wrong("fabric", f'missing; expected what joins {count} nodes, such as "1 ethernet-25g"')
    node = replace(nodes[name], price=read_price(machine) or nodes[name].price)
    return Machine(node=node, nodes=count, fabric=fabric if count > 1 else None)


def _fabric(machine: Table, names: Names) -> tuple[int, LinkType] | None:
    said = machine.counted("fabric")
    if said is None:
        return None
    try:
        return said[0], names.link(said[1])
    except InputError as error:
        raise machine.wrong("fabric", error.message) from None


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
