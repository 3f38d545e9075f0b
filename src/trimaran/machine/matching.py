"""Devices by the labels that people give them: "NVIDIA_A100_80GB_PCIe", "RTX 2080 MAX-Q", "- K80 (single GPU)".

A device is known by the words of one of its names that no other kind has ("v100", "2080 ti"). All of them must be in
the label, the device with most of them wins, and memory and form choose between those that share a name.

Words of a label of a device or a machine: "2x RTX 2080Ti NVLink", "a100_40gb RoCE 1600 Gb/s".

Rates of networks and counts are taken out first, so that "100 Gb/s" is not a memory of 100 GB and "4x" not a TITAN X.
"""

import functools
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.machine.catalog import catalog, entries_of
from trimaran.machine.types import Device

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
    """The content of a label.

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
    """Read a label.

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
        assumed: what the label does not say and was assumed, in words
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
