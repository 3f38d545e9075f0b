"""The catalog: devices, kinds of links and nodes, by name, by labels that people give them, from tables of files.

Files of `machine/devices` hold one generation each, every figure with its source; a user's own file has the same form.
Reading all of them takes some 10 ms, an entry becomes a device when it is asked for.

Left out: the host's own memory. Links between devices are a node's.

From a table of a catalog file to a device.

What the table does not say is in `assumed.toml`, by generation and slot.

Devices by the labels that people give them: "NVIDIA_A100_80GB_PCIe", "RTX 2080 MAX-Q", "- K80 (single GPU)".

A device is known by the words of one of its names that no other kind has ("v100", "2080 ti"). All of them must be in
the label, the device with most of them wins, and memory and form choose between those that share a name.

Words of a label of a device or a machine: "2x RTX 2080Ti NVLink", "a100_40gb RoCE 1600 Gb/s".

Rates of networks and counts are taken out first, so that "100 Gb/s" is not a memory of 100 GB and "4x" not a TITAN X.

Nodes of the catalog by name, and a node for a device whose machine is not named.

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

Tables of a TOML file are read with the path of every value, so that an error names the place to correct.

    rack.toml: devices[0].memory: expected a size such as "16 GiB", got "16"

Values are checked as they are asked for. `allow` says first which keys there may be.
"""

import difflib
import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from trimaran.base import units as figures
from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.files import packaged_names, packaged_toml
from trimaran.base.precision import Precision, short_spelling
from trimaran.machine.prices import Price, parse_price
from trimaran.machine.types import GENERATIONS, Bandwidth, Copies, Device, Edge, Launch, Link, Memory, Node, Peak

# ---------------------------------------------------------------------------------------------------------------------
# Tables of a TOML file


Value = TypeVar("Value")

_MOST_LATENCY_S = 10.0
"""Of anything in a machine."""


class Table:
    """One table of a file.

    Args:
        values: as TOML has them
        file: that they come from
        path: of this table in the file, such as "devices[0]"; "" for the whole file
    """

    def __init__(self, values: Mapping[str, object], *, file: str, path: str = "") -> None:
        self.values = values
        self.file = file
        self.path = path

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def place(self, key: str) -> str:
        """File and path of a key."""
        return f"{self.file}: {self.path}.{key}" if self.path else f"{self.file}: {key}"

    def wrong(self, key: str, expected: str) -> InputError:
        """The error that the value of a key is not what was expected."""
        return InputError(
            f"{self.place(key)}: {expected}",
            code="machine-file.wrong-value",
            file=self.file,
            key=key,
            value=self.values.get(key),
        )

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty.

        Raises:
            InputError: it is missing and there is no default, or it is something else
        """
        value = self._value(key, default, expected="a text")
        if not isinstance(value, str) or (not value.strip() and default is None):
            raise self.wrong(key, f"expected a text, got {_shown(value)}")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of texts."""
        value = self._value(key, default, expected="a list of texts")
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, f"expected a list of texts, got {_shown(value)}")
        return tuple(value)

    def whole(self, key: str, default: int | None = None, *, least: int = 1, most: int | None = None) -> int:
        """A whole number."""
        expected = f"a whole number of at least {least}" + (f", at most {most:,}" if most is not None else "")
        value = self._value(key, default, expected=expected)
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most or value) < value:
            raise self.wrong(key, f"expected {expected}, got {_shown(value)}")
        return value

    def share(self, key: str, default: float | None = None) -> float:
        """A share above 0 and up to 1."""
        value = self._value(key, default, expected="a share between 0 and 1")
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
            raise self.wrong(key, f"expected a share between 0 and 1, got {_shown(value)}")
        return float(value)

    def shares(self, key: str) -> tuple[float, float]:
        """Two shares above 0 and up to 1, the lower one first; (0, 0) where the key is missing."""
        value = self._value(key, [0.0, 0.0], expected="two shares")
        numbers = value if isinstance(value, list) and len(value) == 2 else []
        if any(not isinstance(one, int | float) or isinstance(one, bool) for one in numbers) or (
            key in self and not (numbers and 0 < numbers[0] <= numbers[1] <= 1)
        ):
            raise self.wrong(key, f"expected the least and the most, between 0 and 1, got {_shown(value)}")
        return float(numbers[0]), float(numbers[1])

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default, expected="true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, f"expected true or false, got {_shown(value)}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A size such as "16 GiB" [bytes]."""
        nbytes = self._figure(key, figures.parse_bytes, default, expected='a size such as "16 GiB"')
        if nbytes == 0 and key in self:
            raise self.wrong(key, f'expected a size such as "16 GiB", got {_shown(self.values[key])}')
        return nbytes

    def rate(self, key: str, default: float | None = None) -> float:
        """A rate such as "25 GB/s" [bytes/s]."""
        return self._figure(key, figures.parse_rate, default, expected='a rate such as "25 GB/s" or "1 Gb/s"')

    def flops(self, key: str) -> float:
        """Arithmetic per second such as "15.7 TFLOP/s" [FLOP/s]."""
        return self._figure(key, figures.parse_flops, None, expected='arithmetic per second such as "15.7 TFLOP/s"')

    def power(self, key: str, default: float | None = None) -> float:
        """A power such as "300 W" [W]."""
        return self._figure(key, figures.parse_power, default, expected='a power such as "300 W"')

    def seconds(self, key: str, default: float | None = None) -> float:
        """A duration such as "1.5 us" [s]."""
        seconds = self._figure(
            key, partial(figures.parse_seconds, needs_unit=True), default, expected='a duration such as "1.5 us"'
        )
        if seconds > _MOST_LATENCY_S:
            raise self.wrong(key, f"expected at most {_MOST_LATENCY_S:g} s, got {_shown(self.values[key])}")
        return seconds

    def counted(self, key: str) -> tuple[int, str] | None:
        """A count with a name, such as "4 ib-edr"; None where the key is missing."""
        if key not in self.values:
            return None
        return self._figure(key, figures.parse_counted, None, expected='a count and a name such as "4 ib-edr"')

    def table(self, key: str) -> "Table":
        """A table inside this one; an empty one where it is missing."""
        value = self._value(key, {}, expected="a table")
        if not isinstance(value, dict):
            raise self.wrong(key, f"expected a table, got {_shown(value)}")
        return Table(value, file=self.file, path=f"{self.path}.{key}" if self.path else key)

    def tables(self, key: str) -> tuple["Table", ...]:
        """The tables of a list; none where it is missing."""
        value = self._value(key, [], expected="a list of tables")
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, f"expected tables headed [[{key}]], got {_shown(value)}")
        prefix = f"{self.path}.{key}" if self.path else key
        return tuple(Table(item, file=self.file, path=f"{prefix}[{index}]") for index, item in enumerate(value))

    def allow(self, *keys: str) -> None:
        """Say which key of this table is none of these.

        Raises:
            InputError: there is one
        """
        for key in self.values:
            if key not in keys:
                raise self.wrong(key, f"unknown key{did_you_mean(key, keys)}")

    def _value(self, key: str, default: object, *, expected: str) -> object:
        if key in self.values:
            return self.values[key]
        if default is None:
            raise self.wrong(key, f"missing; expected {expected}")
        return default

    def _figure(self, key: str, parse: Callable[[str], Value], default: Value | None, *, expected: str) -> Value:
        if key not in self.values and default is not None:
            return default
        value = self._value(key, None, expected=expected)
        if not isinstance(value, str):
            raise self.wrong(key, f"expected {expected}, got {_shown(value)}")
        try:
            return parse(value)
        except InputError as error:
            raise self.wrong(key, error.message) from None


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value).lower() if isinstance(value, bool) else repr(value)


# ---------------------------------------------------------------------------------------------------------------------
# Devices and kinds of links


DEVICE_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
"""Those that a device may have a rate of."""

_DEVICE_KEYS = (
    *("name", "title", "aliases", "caveat", "architecture", "year", "form", "processors", "memory", "reported"),
    *("context", "bandwidth", "cache", "power", "pcie", "links", "peer_access", "compute", "tensor", "shares"),
    *("copies", "source", "sources"),
)
FORMS = ("sxm", "pcie", "oam", "superchip", "mobile", "cpu")
_SLOT = re.compile(r"([3-6])\.0 x(4|8|16)")


def read_device(entry: Table) -> Device:
    """The device of a table.

    Args:
        entry: of a catalog file or of a user's

    Raises:
        InputError: a figure is missing, has a wrong unit or is not a figure; a key is unknown
    """
    entry.allow(*_DEVICE_KEYS)
    slot = entry.text("pcie", "3.0 x16")
    parts = _SLOT.fullmatch(slot)
    if parts is None:
        raise entry.wrong("pcie", f'expected a slot such as "4.0 x16", got "{slot}"')
    form = entry.text("form", "pcie")
    if form not in FORMS:
        raise entry.wrong("form", f'expected one of {", ".join(FORMS)}, got "{form}"')
    links, link = entry.counted("links") or (0, "")
    sources = _by_precision(entry.table("sources"))
    sources.allow("memory", "bandwidth", "copies", *DEVICE_PRECISIONS)
    architecture = entry.text("architecture", "other")
    return Device(
        name=entry.text("name"),
        title=entry.text("title", entry.text("name")),
        aliases=entry.texts("aliases", ()),
        caveat=entry.text("caveat", " ").strip(),
        memory=_memory(entry, sources),
        bandwidth=_bandwidth(entry, sources, architecture),
        compute=_compute(entry, sources, architecture),
        copies=_copies(entry, sources, slot),
        launch=_launch(),
        architecture=architecture,
        year=entry.whole("year", 0, least=0),
        form=form,
        multiprocessors=entry.whole("processors", 0, least=0),
        cache_bytes=entry.size("cache", 0),
        power_w=entry.power("power", 0.0),
        pcie_generation=int(parts[1]),
        pcie_lanes=int(parts[2]),
        links=links,
        link=link,
        peer_access=entry.flag("peer_access", default=True),
        tensor_precisions=_tensor(entry),
        source=entry.text("source"),
    )


@functools.cache
def _assumed() -> Table:
    return Table(packaged_toml("trimaran.machine", "assumed.toml"), file="assumed.toml")


def _shares(architecture: str) -> Table:
    shares, generation = _assumed().table("shares"), GENERATIONS.get(architecture, architecture)
    return shares.table(generation if generation in shares else "other")


def _memory(entry: Table, sources: Table) -> Memory:
    assumed = _assumed().table("memory")
    nbytes = entry.size("memory")
    reported = entry.size("reported", round(nbytes * assumed.share("reported_share")))
    if reported > nbytes:
        raise entry.wrong("reported", f"expected no more than memory, {nbytes} B, got {reported} B")
    source = sources.text("memory", assumed.text("source"))
    context = entry.size("context", assumed.size("context"))
    if reported <= context:
        told = f"expected more than the driver's context takes, {figures.format_bytes(context)}"
        raise entry.wrong("memory", f"{told}, got {figures.format_bytes(reported)} that the driver reports")
    return Memory(nbytes=nbytes, reported_bytes=reported, context_bytes=context, source=source)


def _bandwidth(entry: Table, sources: Table, architecture: str) -> Bandwidth:
    assumed = _shares(architecture)
    shares = _by_precision(entry.table("shares"))
    source = sources.text("bandwidth", f"{entry.text('source')}; share: {assumed.text('source')}")
    fraction = shares.share("bandwidth", assumed.share("bandwidth"))
    return Bandwidth(bytes_per_s=entry.rate("bandwidth"), fraction=fraction, source=source)


def _compute(entry: Table, sources: Table, architecture: str) -> dict[str, Peak]:
    compute, shares = _by_precision(entry.table("compute")), _by_precision(entry.table("shares"))
    assumed, tensor = _shares(architecture), _tensor(entry)
    compute.allow(*DEVICE_PRECISIONS)
    shares.allow("bandwidth", *DEVICE_PRECISIONS)
    peaks: dict[str, Peak] = {}
    for precision in DEVICE_PRECISIONS:
        kind = "tensor" if precision in tensor else "fp32"
        fraction = shares.share(precision, assumed.share(kind))
        source = sources.text(precision, f"{entry.text('source')}; share: {assumed.text('source')}")
        if precision in compute or precision == "fp32":
            peaks[precision] = Peak(flops_per_s=compute.flops(precision), fraction=fraction, source=source)
    unknown = [precision for precision in tensor if precision not in peaks]
    if unknown:
        told = f'expected precisions of compute, got "{unknown[0]}"; compute has {", ".join(peaks)}'
        raise entry.wrong("tensor", told)
    return peaks


def _by_precision(table: Table) -> Table:
    """A table with the short names of precisions in place of long ones; other keys stay."""
    values = {short_spelling(key) or key: value for key, value in table.values.items()}
    return Table(values, file=table.file, path=table.path)


def _tensor(entry: Table) -> tuple[str, ...]:
    """Precisions whose products run on tensor cores."""
    return tuple(short_spelling(text) or text for text in entry.texts("tensor", ()))


def _copies(entry: Table, sources: Table, slot: str) -> Copies:
    every = _assumed().table("copies")
    assumed = every.table(slot if slot in every else "3.0 x16")
    own = entry.table("copies")
    own.allow("to_host", "to_device", "latency")
    return Copies(
        to_host_bytes_per_s=own.rate("to_host", assumed.rate("to_host")),
        to_device_bytes_per_s=own.rate("to_device", assumed.rate("to_device")),
        latency_s=own.seconds("latency", every.seconds("latency")),
        source=f"{sources.text('copies', assumed.text('source'))}; {every.text('source')}",
    )


def _launch() -> Launch:
    launch = _assumed().table("launch")
    return Launch(seconds=launch.seconds("seconds"), source=launch.text("source"))


class Catalog(Mapping[str, Device]):
    """Every device of the catalog, by name; each is read when it is asked for."""

    def __init__(self, entries: Mapping[str, Table]) -> None:
        self._entries = entries
        self._read: dict[str, Device] = {}

    def __getitem__(self, name: str) -> Device:
        if name not in self._read:
            self._read[name] = read_device(self._entries[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@functools.cache
def catalog() -> Mapping[str, Device]:
    """Every device of the catalog, by name, generation after generation."""
    return Catalog({entry.text("name"): entry for entry in entries_of("devices")})


@functools.cache
def entries_of(kind: str) -> tuple[Table, ...]:
    """All entries of the catalog's files of a kind, as tables.

    Args:
        kind: "devices" or "nodes", which is also the folder
    """
    found: list[Table] = []
    for name in packaged_names(kind):
        found += Table(packaged_toml("trimaran.machine", name), file=name).tables(kind)
    return tuple(found)


@functools.cache
def _names() -> Mapping[str, str]:
    return {
        squeezed(name): entry.text("name")
        for entry in entries_of("devices")
        for name in (entry.text("name"), *entry.texts("aliases", ()))
    }


def find_device(name: str) -> Device:
    """The device of that name or alias; upper case, spaces, hyphens and underscores do not matter.

    Raises:
        InputError: there is none

    Example:
        >>> find_device("Titan X").name, find_device("V100").name
        ('titan-x', 'v100-16gb')
    """
    names = _names()
    if squeezed(name) in names:
        return catalog()[names[squeezed(name)]]
    raise InputError(
        f'unknown device "{name}"{_nearest(name, names, "trimaran catalog machines --devices")}',
        code="device.unknown",
        device=name,
    )


def squeezed(name: str) -> str:
    """A name without what people write differently: case, hyphens, spaces, underscores.

    Example:
        >>> squeezed("DGX-1 V100") == squeezed("dgx1-v100")
        True
    """
    return "".join(name.lower().replace("_", " ").replace("-", " ").split())


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of links, by name: `links.toml`


ACCESS = ("direct", "host")
"""How collectives use a card for the network, where that is known."""


@functools.cache
def link_types() -> Mapping[str, Link]:
    """Every kind of link of the catalog, by name."""
    read = [
        read_link(entry)
        for entry in Table(packaged_toml("trimaran.machine", "links.toml"), file="links.toml").tables("links")
    ]
    return {link.name: link for link in read}


def find_link(name: str) -> Link:
    """The kind of link of that name, or a card for the network that is not listed, by the rate in its name.

    A card of a listed kind sustains the share of its rate that the nearest one of that kind does; of another kind
    nothing is known but the rate, and what collectives take over it has a wide interval.

    Raises:
        InputError: there is none

    Example:
        >>> find_link("nvlink2").raw_bytes_per_s
        25000000000.0
        >>> found = find_link("roce-800g")
        >>> found.bytes_per_s / 1e9, found.access, find_link("bxi-200g").access
        (92.0, 'direct', '')
    """
    if name in link_types():
        return link_types()[name]
    rated = _RATED.fullmatch(name)
    kind, gigabits = (rated[1], float(rated[2])) if rated else ("", 0.0)
    # A listed kind at a rate that nobody sells, and a word that is nearly a listed kind, are slips of the pen.
    listed = kind in network_kinds() and gigabits in _RATES_SOLD
    strange = not difflib.get_close_matches(kind, (*network_kinds(), *_INSIDE), n=1, cutoff=0.75)
    if not listed and not (strange and 0 < gigabits <= _MOST_GIGABITS):
        near = did_you_mean(name, link_types()) or '; a network that is not listed is named by its rate, as "bxi-200g"'
        raise InputError(f'unknown link "{name}"{near}', code="link.unknown", link=name)
    return card_of(kind, gigabits * 1e9 / 8)


_RATED = re.compile(r"([a-z][a-z0-9]*(?:-[a-z][a-z0-9]*)*)-(\d{1,5}(?:\.\d{1,3})?)g")
_MOST_GIGABITS = 10_000.0
_RATES_SOLD = (1.0, 10.0, 20.0, 25.0, 40.0, 50.0, 56.0, 100.0, 200.0, 400.0, 800.0, 1600.0)
"""Of cards for the network [Gbit/s]."""
_UNLISTED_LATENCY_S = 30e-6
"""Of a card of which nothing is known, as the slowest that are: TCP."""


@functools.cache
def network_kinds() -> Mapping[str, tuple[Link, ...]]:
    """Cards for the network, by their kind, and by how their names begin where that is another word ("ib")."""
    found: dict[str, tuple[Link, ...]] = {}
    for link in link_types().values():
        if link.kind not in _INSIDE:
            for word in {link.kind, link.name.split("-")[0]}:
                found[word] = (*found.get(word, ()), link)
    return found


_INSIDE = ("nvlink", "nvlink-c2c", "xgmi", "pcie", "socket")
"""Kinds of links inside a node."""


def card_of(kind: str, bytes_per_s: float) -> Link:
    """A card for the network of any kind and rate: the nearest one that is listed, or its share of another rate.

    Args:
        kind: of `network_kinds`, or another word
        bytes_per_s: its rate [bytes/s]
    """
    name = f"{kind}-{bytes_per_s * 8 / 1e9:g}g"
    if kind not in network_kinds():
        return Link(
            name=name,
            kind=kind,
            raw_bytes_per_s=bytes_per_s,
            bytes_per_s=bytes_per_s,
            latency_s=_UNLISTED_LATENCY_S,
            source=f'not in the catalog: nothing is known of "{kind}" but its rate',
        )
    nearest = min(network_kinds()[kind], key=lambda link: abs(link.raw_bytes_per_s - bytes_per_s))
    share = bytes_per_s / nearest.raw_bytes_per_s
    if abs(share - 1) < 0.05:
        return nearest
    return replace(
        nearest,
        name=name,
        raw_bytes_per_s=bytes_per_s,
        bytes_per_s=nearest.bytes_per_s * share,
        source=f"assumed: the share of its rate that {nearest.name} sustains",
    )


def read_link(entry: Table) -> Link:
    """The kind of link of a table.

    Raises:
        InputError: a figure is missing, has a wrong unit or is not a figure; a key is unknown
    """
    entry.allow("name", "kind", "raw", "sustained", "ring", "latency", "access", "hop", "reach", "source")
    raw, access = entry.rate("raw"), entry.text("access", "")
    if access not in ("", *ACCESS):
        raise entry.wrong("access", f'expected one of {", ".join(ACCESS)}, got "{access}"')
    link = Link(
        name=entry.text("name"),
        kind=entry.text("kind"),
        raw_bytes_per_s=raw,
        bytes_per_s=entry.rate("sustained"),
        latency_s=entry.seconds("latency"),
        source=entry.text("source"),
        ring_bytes_per_s=entry.rate("ring", 0.0),
        access=access,
        hop_s=entry.seconds("hop", 0.0),
        reach=entry.shares("reach"),
    )
    for key, rate in (("sustained", link.bytes_per_s), ("ring", link.ring_bytes_per_s)):
        if rate > raw:
            raise entry.wrong(key, f"expected no more than raw, {entry.values['raw']}")
    return link


# ---------------------------------------------------------------------------------------------------------------------
# Devices by the labels that people give them


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


# ---------------------------------------------------------------------------------------------------------------------
# Nodes


MOST_DEVICES = 1024
"""Of a node; the largest ones of today have less than a tenth."""

MOST_EDGES = 100_000
"""Of a node."""

KINDS = ("gpu", "cpu", "plx", "nvsw", "nic")
"""Devices, sockets of the host, PCIe switches, NVLink switches, cards for the network."""

_END = re.compile(r"([a-z]+)([0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*)")
_LINK_COUNT = re.compile(r"x([1-9][0-9]{0,3})")
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
    count = _LINK_COUNT.fullmatch(words[-1]) if len(words) == 4 else None
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

_NODE_KEYS = (
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
    entry.allow(*_NODE_KEYS)
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
    """The end of a sentence that names the nearest machine or device, where one is near."""
    return _nearest(name, {**nodes_by_alias(), **_names()}, "trimaran catalog machines")


_NEAR = 0.8
"""Likeness of two names from which on one is taken for the other with a slip: "tpu-v5e" and "p5en" have 0.6 [0..1]."""

_ELSEWHERE = (
    (r"tpu.*|v[2-6][ep]|trillium|ironwood", "TPUs of Google"),
    (r"trn.*|trainium.*|inf[12].*|inferentia.*", "Trainium and Inferentia of AWS"),
    (r"gaudi.*|habana.*|hpu.*|hl.?[0-9]+|dl1.*", "Gaudi of Intel"),
    (r"(intel)?(max1[15]50|arc.*|pvc|pontevecchio|flex[0-9]+)", "GPUs of Intel"),
    (r"(apple)?m[1-5](pro|max|ultra)?|apple.*|mac.*|mps", "Apple silicon"),
    (r"(huawei)?ascend.*|910[abc]", "Ascend of Huawei"),
    (r"cerebras.*|wse.*|cs[23]|graphcore.*|ipu.*|groq.*|lpu|sambanova.*|tenstorrent.*", "accelerators of this maker"),
)
"""Hardware that people ask for and the catalog has not, by what its squeezed names look like."""


def _nearest(name: str, known: Mapping[str, str], command: str) -> str:
    base = squeezed(name.partition(":")[0].partition("@")[0])
    kind = next((kind for pattern, kind in _ELSEWHERE if re.fullmatch(pattern, base)), "")
    if kind:
        return (
            f": the catalog has no {kind}, only GPUs of NVIDIA and AMD and processors; a file of yours may describe "
            "another machine by its rates, memory and links, as in docs/clusters.md"
        )
    counted = re.fullmatch(r"(.+?)[x*]([0-9]+)", base)
    if counted and counted[1] in known:
        return f'; did you mean "{counted[2]}x{known[counted[1]]}"?'
    near = difflib.get_close_matches(squeezed(name), known, n=1, cutoff=_NEAR)
    if near:
        return f'; did you mean "{known[near[0]]}"? `{command}` lists those that are known'
    return f"; `{command}` lists those that are known, a file of yours may describe another (docs/clusters.md)"


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
