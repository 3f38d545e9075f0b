"""Nodes of the catalog by name, and a node for a device of which nobody says where it sits.

A module (SXM, OAM) sits on the board that its maker sells it on; a card sits in a plain box with as many slots as are
asked for. Cards of PCIe 3.0 get the boxes of their time, where switches join pairs of them.
"""

import difflib
import functools
from collections.abc import Mapping
from dataclasses import replace

from trimaran.cluster.catalog import CatalogDevice, entries_of, find_device, squeezed
from trimaran.cluster.links import find_link
from trimaran.cluster.machines import Node
from trimaran.cluster.node_entries import Names, fewer_devices, read_node
from trimaran.cluster.reading import Table, did_you_mean
from trimaran.errors import InputError

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
def _by_alias() -> Mapping[str, str]:
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
    known = _by_alias()
    if squeezed(name) not in known:
        raise InputError(f'unknown machine "{name}"{nearest_machine(name)}', machine=name)
    return read_node(node_tables()[known[squeezed(name)]], CATALOG_NAMES)


def nearest_machine(name: str) -> str:
    """The end of a sentence that names the nearest machine, where one is near."""
    near = difflib.get_close_matches(squeezed(name), _by_alias(), n=1)
    return f'; did you mean "{_by_alias()[near[0]]}"?' if near else "; `trimaran clusters` lists those that are known"


def is_machine(name: str) -> bool:
    """Whether it is the name or alias of a node."""
    return squeezed(name) in _by_alias()


def usual_node(device: CatalogDevice) -> Node | None:
    """The machine that a module sits in as its maker sells it; None for a card."""
    name = _usual().get(device.name)
    return find_node(name) if name is not None else None


def plain_node(device: CatalogDevice, devices: int, *, bridged: bool = False) -> Node:
    """A node for a device of which nobody says where it sits.

    Args:
        device: a module or a card
        devices: at least so many, where the node can hold them
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


def boxed(device: CatalogDevice, devices: int, *, bridged: bool = False) -> Node:
    """A plain box of cards.

    Args:
        device: a card, or a module taken for one
        devices: at least so many, at most 16
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
