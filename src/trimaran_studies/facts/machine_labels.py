"""Machines by the labels of published rows: "DGX-1", "AWS p2.8xlarge", "LambdaCloud 8x V100 16GB", "2x RTX 3090".

The words are searched for a name of the catalog first, then for a provider together with the device. Without either,
the machine follows from the device: a module is on its maker's board, a card is in a plain server with enough slots.
More devices than a node holds make several nodes.
"""

import functools
import math
from dataclasses import dataclass, replace

from trimaran.machine.catalog import (
    Label,
    MatchedDevice,
    find_link,
    find_node,
    match_words,
    node_names,
    nodes_by_alias,
    plain_node,
    read_label,
    squeezed,
)
from trimaran.machine.find import default_fabric
from trimaran.machine.types import Device, Link, Machine, Node

# ---------------------------------------------------------------------------------------------------------------------
# Networks between nodes, read from labels: "100 Gb/s InfiniBand", "RoCE 1600 Gb/s", "25 GbE"


_KINDS = (
    (("infiniband", "ib", "edr", "hdr", "ndr", "xdr", "fdr", "mellanox"), "ib"),
    (("roce", "rdma", "rocev2"), "roce"),
    (("efa",), "efa"),
    (("omni", "opa", "omnipath"), "omni-path"),
    (("slingshot",), "slingshot"),
    (("ethernet", "tcp", "gbe"), "ethernet"),
)
_RATES = {
    "ib": {56: "ib-fdr", 100: "ib-edr", 200: "ib-hdr", 400: "ib-ndr", 800: "ib-xdr"},
    "roce": {25: "roce-25g", 50: "roce-50g", 100: "roce-100g", 200: "roce-200g", 400: "roce-400g"},
    "efa": {100: "efa-v1-100g", 200: "efa-v3-200g", 400: "efa-v4-400g"},
    "omni-path": {100: "omni-path-100"},
    "slingshot": {200: "slingshot-11"},
    "ethernet": {rate: f"ethernet-{rate}g" for rate in (1, 10, 16, 25, 32, 40, 50, 100, 200, 400)},
}
_NAMED = {"fdr": "ib-fdr", "edr": "ib-edr", "hdr": "ib-hdr", "ndr": "ib-ndr", "xdr": "ib-xdr"}
_MOST_PER_NODE = 32


def match_fabric(label: Label, devices_of_node: int) -> tuple[int, Link] | None:
    """The network that a label names.

    Args:
        label: of a machine
        devices_of_node: the likely number of network cards, where the rate is the sum of several

    Returns:
        Number of network cards of a node and their type; None where the label names no known network.

    Example:
        >>> from trimaran.machine.catalog import read_label
        >>> cards, link = match_fabric(read_label("RoCE 1600 Gb/s"), 8)
        >>> cards, link.name
        (8, 'roce-200g')
    """
    kind = next((kind for words, kind in _KINDS if any(word in label.words for word in words)), "")
    gigabits = label.rate_bits_per_s / 1e9
    if not gigabits:
        named = next((_NAMED[word] for word in label.words if word in _NAMED), None)
        return (1, find_link(named)) if named else None
    rates = _RATES[kind or "ethernet"]
    if gigabits in rates:
        return max(label.rate_count, 1), find_link(rates[round(gigabits)])
    return _several(gigabits, rates, devices_of_node)


def _several(gigabits: float, rates: dict[int, str], devices_of_node: int) -> tuple[int, Link]:
    """Cards whose rates sum to a rate, one for each device where that fits; else the single card nearest to it."""
    for cards in (devices_of_node, *range(2, _MOST_PER_NODE + 1)):
        if cards and gigabits / cards in rates:
            return cards, find_link(rates[round(gigabits / cards)])
    return 1, find_link(rates[min(rates, key=lambda rate: abs(rate - gigabits))])


_PROVIDERS = {
    **dict.fromkeys(("gcp", "gce", "google", "colab", "kaggle"), "gcp"),
    **dict.fromkeys(("aws", "ec2", "amazon"), "aws"),
    **dict.fromkeys(("azure",), "azure"),
    **dict.fromkeys(("lambda", "lambdacloud"), "lambda"),
}
_LONGEST_NAME = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedMachine:
    """A machine that a label means.

    Attributes:
        machine: nodes and fabric
        device: that it has
        assumed: assumptions about what the label does not say, in words
    """

    machine: Machine
    device: Device
    assumed: tuple[str, ...]


def match_machine(
    text: str, device_text: str = "", *, devices: int, nodes: int | None = None, memory_gb: float | None = None
) -> MatchedMachine | None:
    """The machine that labels mean.

    Args:
        text: label of the machine; may be empty
        device_text: label of the device; may be empty, or the same once more
        devices: in use, in all
        nodes: in use, where the source says it
        memory_gb: of a device, where the source says it apart [GB]

    Returns:
        The machine and what was assumed; None where no device that is known is named, nor a machine that has one.

    Example:
        >>> found = match_machine("DGX-1", "V100", devices=8, memory_gb=16)
        >>> found.machine.node.name, found.machine.nodes
        ('dgx1-v100', 1)
    """
    label, device_label = read_label(text), read_label(device_text)
    memory = memory_gb or device_label.memory_gb or label.memory_gb or None
    found = match_words(device_label, memory) or match_words(label, memory)
    devices = max(devices, 1)  # sources say 0 where a processor computes
    told = label.per_node or device_label.per_node
    nodes = nodes or _nodes_in_use(label.nodes, told, devices)
    per_node = told or math.ceil(devices / (nodes or 1))
    assumed: list[str] = []
    named = _named_node(label) or _named_node(device_label) or (_provided(label, found) if found else None)
    if named is not None:
        node = _with_device(named, found, assumed) if found else _with_memory(named, memory)
    elif found is not None:
        assumed += found.assumed
        bridged = "nvlink" in label.words or "nvlink" in device_label.words
        node = plain_node(found.device, max(per_node, 1), bridged=bridged)
        assumed.append(f"machine not said: {node.title}")
    else:
        return None
    in_use = min(node.devices, told or node.devices)
    count = max(nodes or math.ceil(devices / in_use), math.ceil(devices / node.devices))
    fabric = _fabric(label, device_label, node, count, assumed)
    return MatchedMachine(
        machine=Machine(node=node, nodes=count, fabric=fabric),
        device=node.device,
        assumed=tuple(dict.fromkeys(assumed)),
    )


def _nodes_in_use(labelled: int, per_node: int, devices: int) -> int | None:
    """Nodes of a job on a cluster whose label tells its size: no more than the job's devices fill."""
    if not labelled:
        return None
    if per_node:
        return min(labelled, math.ceil(devices / per_node))
    return labelled if devices % labelled == 0 else None


def _fabric(label: Label, device_label: Label, node: Node, nodes: int, assumed: list[str]) -> tuple[int, Link] | None:
    said = match_fabric(label, node.devices) or match_fabric(device_label, node.devices)
    if nodes == 1:
        return None
    if said is None:
        count, link = default_fabric(node)
        assumed.append(f"network not said: {count} x {link.name} a node assumed")
        return count, link
    return said


def _named_node(label: Label) -> Node | None:
    """The node whose name is the longest run of words."""
    words = label.words
    for length in range(min(_LONGEST_NAME, len(words)), 0, -1):
        for start in range(len(words) - length + 1):
            name = squeezed("".join(words[start : start + length]))
            if name in nodes_by_alias():
                return find_node(nodes_by_alias()[name])
    return None


def _provided(label: Label, found: MatchedDevice) -> Node | None:
    """The node that a provider rents out with a device."""
    provider = next((_PROVIDERS[word] for word in label.words if word in _PROVIDERS), None)
    if provider is None:
        return None
    family = found.device.name.split("-")[0]
    memory = f"{found.device.memory.nbytes / 2**30:.0f}gb"
    for name in (f"{provider}{family}{memory}", f"{provider}{family}"):
        node = find_node(nodes_by_alias()[name]) if name in nodes_by_alias() else None
        if node is not None and node.device in found.possible:
            return node
    return None


def _with_device(node: Node, found: MatchedDevice, assumed: list[str]) -> Node:
    """A node of the same series that has the device; or the node with its device changed; or a plain one."""
    if node.device in found.possible:
        return node
    series = [find_node(name) for name in _series(node.name)]
    fitting = [other for other in series if other.device in found.possible]
    if not fitting:
        fitting = [other for other in series if _alike(other.device, found.device)]
    if fitting:
        return fitting[0]
    if _family(node.device) == _family(found.device):
        assumed.append(f"{node.title}, but with {found.device.title}")
        return replace(node, device=found.device)
    assumed += found.assumed
    assumed.append(f"{node.title} has no {found.device.title}: its usual machine is meant")
    return plain_node(found.device, node.devices)


def _with_memory(node: Node, memory_gb: float | None) -> Node:
    """A node of the same series whose device has the memory, where the label says no more than that."""
    if memory_gb is None:
        return node
    series = [node, *(find_node(name) for name in _series(node.name))]
    fitting = [
        other
        for other in series
        if _family(other.device) == _family(node.device) and round(other.device.memory.nbytes / 2**30) == memory_gb
    ]
    return fitting[0] if fitting else node


def _family(device: Device) -> str:
    return device.name.split("-")[0]


def _alike(one: Device, other: Device) -> bool:
    """Whether two are of one family and one size, whatever their form."""
    return _family(one) == _family(other) and one.memory.nbytes == other.memory.nbytes


@functools.cache
def _series(name: str) -> tuple[str, ...]:
    """Names of nodes that people call alike: they begin as this one does, up to its device."""
    stem = name.split("-")[0]
    if stem == "dgx" or stem == "hgx":
        stem = "-".join(name.split("-")[:2])
    return tuple(other for other in node_names() if other == stem or other.startswith(f"{stem}-"))
