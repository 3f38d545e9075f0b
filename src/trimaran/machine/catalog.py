"""Devices of the catalog, by name.

Files of `machine/devices` hold one generation each, every figure with its source; a user's own file has the same form.
Reading all of them takes some 10 ms, an entry becomes a device when it is asked for.

Left out: links between devices, which are a machine's (`nodes`), and the host's own memory.

From a table of a catalog file to a device.

What the table does not say is in `assumed.toml`, by generation and slot.
"""

import difflib
import functools
import re
from collections.abc import Iterator, Mapping

from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.files import packaged_names, packaged_toml
from trimaran.base.precision import Precision, short_spelling
from trimaran.machine.toml_tables import Table
from trimaran.machine.types import Bandwidth, Copies, Device, Launch, Link, Memory, Peak

DEVICE_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
"""Those that a device may have a rate of."""

_KEYS = (
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
    entry.allow(*_KEYS)
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
    shares = _assumed().table("shares")
    return shares.table(architecture if architecture in shares else "other")


def _memory(entry: Table, sources: Table) -> Memory:
    assumed = _assumed().table("memory")
    nbytes = entry.size("memory")
    reported = entry.size("reported", round(nbytes * assumed.share("reported_share")))
    if reported > nbytes:
        raise entry.wrong("reported", f"expected no more than memory, {nbytes} B, got {reported} B")
    source = sources.text("memory", assumed.text("source"))
    context = entry.size("context", assumed.size("context"))
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
    for name in packaged_names("trimaran.machine", kind, ".toml"):
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
    near = difflib.get_close_matches(squeezed(name), names, n=1)
    hint = f'; did you mean "{names[near[0]]}"?' if near else ";"
    raise InputError(
        f'unknown device "{name}"{hint} The catalog has {", ".join(catalog())}', code="device.unknown", device=name
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


@functools.cache
def link_types() -> Mapping[str, Link]:
    """Every kind of link of the catalog, by name."""
    read = [
        read_link(entry)
        for entry in Table(packaged_toml("trimaran.machine", "links.toml"), file="links.toml").tables("links")
    ]
    return {link.name: link for link in read}


def find_link(name: str) -> Link:
    """The kind of link of that name.

    Raises:
        InputError: there is none

    Example:
        >>> find_link("nvlink2").raw_bytes_per_s
        25000000000.0
    """
    if name not in link_types():
        raise InputError(f'unknown link "{name}"{did_you_mean(name, link_types())}', code="link.unknown", link=name)
    return link_types()[name]


def read_link(entry: Table) -> Link:
    """The kind of link of a table.

    Raises:
        InputError: a figure is missing, has a wrong unit or is not a figure; a key is unknown
    """
    entry.allow("name", "kind", "raw", "sustained", "ring", "latency", "source")
    raw = entry.rate("raw")
    link = Link(
        name=entry.text("name"),
        kind=entry.text("kind"),
        raw_bytes_per_s=raw,
        bytes_per_s=entry.rate("sustained"),
        latency_s=entry.seconds("latency"),
        source=entry.text("source"),
        ring_bytes_per_s=entry.rate("ring", 0.0),
    )
    if link.bytes_per_s > raw:
        raise entry.wrong("sustained", f"expected no more than raw, {entry.values['raw']}")
    return link
