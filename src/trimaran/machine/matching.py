"""Machines by the labels that people give them: "DGX-1", "AWS p2.8xlarge", "LambdaCloud 8x V100 16GB", "2x RTX 3090".

First a name of the catalog is looked for among the words, then a provider together with the device. Where there is
neither, the device decides: a module sits on the board of its maker, a card in a plain box with as many slots. More
devices than a node holds make several nodes.

Words of a label that somebody gave a machine: "2x RTX 2080Ti NVLink", "a100_40gb RoCE 1600 Gb/s".

Rates of networks and counts are taken out first, so that "100 Gb/s" is not a memory of 100 GB and "4x" not a TITAN X.

Devices by the labels that people give them: "NVIDIA_A100_80GB_PCIe", "RTX 2080 MAX-Q", "- K80 (single GPU)".

A device is known by the words of one of its names that no other kind has ("v100", "2080 ti"). All of them must be in
the label, the device with most of them wins, and memory and form choose between those that share a name.
"""

import functools
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trimaran.machine.catalog import catalog, entries_of, find_link, squeezed
from trimaran.machine.node_catalog import find_node, node_names, nodes_by_alias, plain_node
from trimaran.machine.types import Device, Link, Machine, Node

_RATE = re.compile(
    r"(?<![\w.])(\d+(?:\.\d+)?)\s*-?\s*(g|t)(?:b(?:its?)?\s*(?:/|p|per)\s*s(?:ec)?|be|bits?|ige)\b"
    # "25Gb Ethernet", but not "A100 80GB IB": sizes of memory are no rates of networks
    r"|(?<![\w.])(?P<bare>1|10|25|50|56|100|200|400|800)\s*gb?\s*(?=ethernet|infiniband|ib\b|roce)"
)
_TRAILING = re.compile(r"(?<![\w.])(\d+)\s*[x×*]\s*$")
_COUNT = re.compile(r"(?<![\w.])(\d+)\s*[x×*]\s*(?=[a-z])")
_MEMORY = re.compile(r"(?<![\w.])(\d+)\s*gi?b\b|(?<=[a-z0-9][_\- ])(\d+)g\b")
_NODE = r"(?:nodes?|machines?|hosts?|servers?|instances?)"
_NODES = re.compile(rf"(?<![\w.])(\d+)\s*{_NODE}\b")
_NODES_OF = re.compile(rf"(?<![\w.])\d+\s*{_NODE}\s*(?:[x×*]|of|with)\s*(\d+)\b")
_PER_NODE = re.compile(
    r"(\d+)\s*(?:[a-z0-9\-]+\s+){0,2}(?:per|/|a|each)\s*(?:node|machine|host|server|instance)\b", re.IGNORECASE
)
_GLUED = (
    (re.compile(r"(\d{3,4})(ti|super)\b"), r"\1 \2"),
    (re.compile(r"\bmax\s*-?\s*q\b|maxq\b"), "max q"),
    (re.compile(r"\btitan(x|xp|v|rtx|black)\b"), r"titan \1"),
    (re.compile(r"\b(rtx|gtx)(\d{3,4}|a\d{4})"), r"\1 \2"),
    (re.compile(r"\b(?:dgx|hgx)\s*-?\s*(a100|h100|h200|b200|b300|h800|a800)\b"), r"dgx \1"),
    (re.compile(r"\bdgx\s*-?\s*([12])([pv])?\b"), r"dgx\1\2"),
    (re.compile(r"\bml\.(?=[pg]\d)"), ""),
    (re.compile(r"\bhgx\s*-?\s*([12])\b"), r"dgx\1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a label says.

    Attributes:
        words: its words, lower case, without what follows
        rate_bits_per_s: of a network [bit/s]; 0 where it names none
        rate_count: of links of that rate, where it says "4x 100 Gb/s"
        memory_gb: of a device [GB]; 0 where it says none
        count: "8x": of devices; 0 where it says none
        nodes: "4 nodes"; 0 where it says none
        per_node: "4 per node", "2 nodes x 4"; 0 where it says none
    """

    words: tuple[str, ...]
    rate_bits_per_s: float
    rate_count: int
    memory_gb: int
    count: int
    nodes: int
    per_node: int


def read_label(text: str) -> Label:
    """What a label says.

    Example:
        >>> label = read_label("4 nodes x 8 V100-SXM2-16GB, 100 Gb/s InfiniBand")
        >>> label.words, label.nodes, label.per_node, label.memory_gb, label.rate_bits_per_s / 1e9
        (('8', 'v100', 'sxm2', 'infiniband'), 4, 8, 16, 100.0)
    """
    rest = unicodedata.normalize("NFKC", text).lower().replace("_", " ").replace("—", " ")
    rate, rate_count = 0.0, 0
    for found in _RATE.finditer(rest):
        value = float(found["bare"] or found[1]) * (1e12 if found[2] == "t" else 1e9)
        if value > rate:
            before = _TRAILING.search(rest[: found.start()])
            rate, rate_count = value, int(before[1]) if before else 0
    rest = _TRAILING.sub(" ", _RATE.sub(" ", rest))
    per_node, rest = _taken(_PER_NODE, rest, keep=True)
    per_node = per_node or _taken(_NODES_OF, rest, keep=True)[0]
    nodes, rest = _taken(_NODES, rest)
    count, rest = _taken(_COUNT, rest)
    memory, rest = _taken(_MEMORY, rest)
    for pattern, better in _GLUED:
        rest = pattern.sub(better, rest)
    words = tuple(word for word in re.sub(r"[^a-z0-9.]+", " ", rest).split() if word.strip(".") not in ("", "x"))
    if any(word == "titan" for word in words) and re.search(r"titan\s*-?\s*x\b", rest):
        at = words.index("titan") + 1
        words = (*words[:at], "x", *words[at:])
    return Label(
        words=tuple(word.strip(".") for word in words),
        rate_bits_per_s=rate,
        rate_count=rate_count,
        memory_gb=memory,
        count=count,
        nodes=nodes,
        per_node=per_node,
    )


def _taken(pattern: re.Pattern[str], text: str, *, keep: bool = False) -> tuple[int, str]:
    found = pattern.search(text)
    if found is None:
        return 0, text
    number = next(int(group) for group in found.groups() if group)
    return number, text if keep else pattern.sub(" ", text)


_GENERAL = frozenset(
    (
        *("nvidia", "tesla", "geforce", "quadro", "amd", "radeon", "instinct", "generation", "gpu", "gpus", "gcd"),
        *("die", "pcie", "sxm", "sxm2", "sxm3", "sxm4", "sxm5", "oam", "mobile", "laptop", "intel", "xeon", "core"),
        *("blackwell", "edition", "server"),
    )
)
"""Words that many devices share."""

_SERIES = frozenset(("rtx", "gtx"))
_FORMS = {"pcie": ("pcie",), "sxm": ("sxm", "oam")} | dict.fromkeys(("sxm2", "sxm3", "sxm4", "sxm5"), ("sxm",))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedDevice:
    """A device that a label means.

    Attributes:
        device: of the catalog
        assumed: what the label does not say and was taken for granted, in words
        possible: all devices that the label may mean as well, this one among them
    """

    device: Device
    assumed: tuple[str, ...] = ()
    possible: tuple[Device, ...] = ()


def match_device(text: str, memory_gb: float | None = None) -> MatchedDevice | None:
    """The device that a label means.

    Args:
        text: the label
        memory_gb: of the device, where the source says it apart [GB]

    Returns:
        The device and what was assumed; None where the label names none that is known.

    Example:
        >>> match_device("RTX 2080Ti NVLink").device.name, match_device("NVIDIA_A100_80GB_PCIe").device.name
        ('rtx-2080-ti', 'a100-pcie-80gb')
    """
    return match_words(read_label(text), memory_gb)


def match_words(label: Label, memory_gb: float | None = None) -> MatchedDevice | None:
    """The device that the words of a label mean."""
    found = _best(set(label.words), _identities(processors=False)) or _best(
        set(label.words), _identities(processors=True)
    )
    return _chosen([catalog()[name] for name in found], label, memory_gb or label.memory_gb or None) if found else None


def _best(words: set[str], kinds: Mapping[str, tuple[frozenset[str], ...]]) -> list[str]:
    """Those of which most words are there."""
    best: list[str] = []
    most = 0
    for name, identities in kinds.items():
        known = max((len(identity) for identity in identities if identity <= words), default=0)
        if known > most:
            best, most = [name], known
        elif known and known == most:
            best.append(name)
    return best


def _chosen(devices: list[Device], label: Label, memory_gb: float | None) -> MatchedDevice:
    forms = next((forms for word, forms in _FORMS.items() if word in label.words), None)
    if forms is not None:
        devices = [device for device in devices if device.form in forms] or devices
    if "sxm3" in label.words:
        devices = [device for device in devices if "sxm3" in device.name] or devices
    nearest = min(abs(device.memory.nbytes / 2**30 - memory_gb) for device in devices) if memory_gb else 0.0
    # Far off, it is the memory of something else: "GH200 480GB" says that of its processor.
    if memory_gb and nearest < memory_gb / 2:
        devices = [device for device in devices if abs(device.memory.nbytes / 2**30 - memory_gb) == nearest]
    possible, assumed = tuple(devices), []
    if len({device.form for device in devices}) > 1:
        assumed.append(f"form not said: {devices[0].form} assumed")
        devices = [device for device in devices if device.form == devices[0].form]
    if len({device.memory.nbytes for device in devices}) > 1:
        devices = [next((device for device in devices if _bare(device)), devices[0])]
        assumed.append(f"memory not said: {devices[0].memory.nbytes / 2**30:g} GiB assumed")
    return MatchedDevice(device=devices[0], assumed=tuple(assumed), possible=possible)


def _bare(device: Device) -> bool:
    """Whether its family's name, with no more than its form, is its own."""
    return any(not any(part.endswith("gb") for part in name.split("-")) for name in (device.name, *device.aliases))


@functools.cache
def _identities(*, processors: bool) -> Mapping[str, tuple[frozenset[str], ...]]:
    """By device, sets of words that mean it. Processors apart: a label that names both means the other device."""
    found = {}
    for entry in entries_of("devices"):
        if (entry.text("form", "pcie") == "cpu") is not processors:
            continue
        names = (entry.text("name"), *entry.texts("aliases", ()), entry.text("title", "").split(",")[0])
        found[entry.text("name")] = tuple({_identity(name) for name in names if name})
    return found


def _identity(name: str) -> frozenset[str]:
    words = frozenset(word for word in read_label(name).words if word not in _GENERAL)
    shorter = words - _SERIES
    return shorter if any(any(letter.isdigit() for letter in word) for word in shorter) else words


# ---------------------------------------------------------------------------------------------------------------------
# Networks between nodes by what labels say of them: "100 Gb/s InfiniBand", "RoCE 1600 Gb/s", "25 GbE"


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
        devices_of_node: the likely number of cards, where the rate is that of several

    Returns:
        Cards of a node and their type; None where the label names no network that is known.

    Example:
        >>> from trimaran.machine.matching import read_label
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
    """Cards that make a rate together, one for each device where that divides; else the nearest single card."""
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
_NETWORK = "ethernet-10g"
"""Where several nodes are asked for and nobody says what joins them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedMachine:
    """A machine that a label means.

    Attributes:
        machine: nodes and fabric
        device: that it has
        assumed: what the label does not say and was taken for granted, in words
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


def default_fabric(node: Node) -> tuple[int, Link]:
    """What joins several nodes of a kind, where nobody says it: their own cards, or else one card of 10 Gb/s."""
    return node.network_cards or (1, find_link(_NETWORK))


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
