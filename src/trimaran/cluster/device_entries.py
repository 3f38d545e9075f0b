"""From a table of a catalog file to a device.

What the table does not say is in `assumed.toml`, by generation and slot.
"""

import functools
import re
import tomllib
from importlib import resources

from trimaran.cluster.catalog_types import Bandwidth, CatalogDevice, Copies, Launch, Memory, Peak
from trimaran.cluster.reading import Table

DTYPES = ("float32", "tf32", "bfloat16", "float16")
_KEYS = (
    *(
        "name",
        "title",
        "aliases",
        "caveat",
        "architecture",
        "year",
        "form",
        "processors",
        "memory",
        "reported",
        "context",
    ),
    *("bandwidth", "cache", "power", "pcie", "links", "peer_access", "compute", "tensor", "shares", "copies"),
    *("source", "sources"),
)
FORMS = ("sxm", "pcie", "oam", "superchip", "mobile", "cpu")
_SLOT = re.compile(r"([3-6])\.0 x(4|8|16)")


def read_device(entry: Table) -> CatalogDevice:
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
    sources = entry.table("sources")
    sources.allow("memory", "bandwidth", "copies", *DTYPES)
    architecture = entry.text("architecture", "other")
    return CatalogDevice(
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
        tensor_dtypes=entry.texts("tensor", ()),
        source=entry.text("source"),
    )


@functools.cache
def _assumed() -> Table:
    text = (resources.files("trimaran.cluster") / "assumed.toml").read_text(encoding="utf-8")
    return Table(tomllib.loads(text), file="assumed.toml")


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
    shares = entry.table("shares")
    source = sources.text("bandwidth", f"{entry.text('source')}; share: {assumed.text('source')}")
    fraction = shares.share("bandwidth", assumed.share("bandwidth"))
    return Bandwidth(bytes_per_s=entry.rate("bandwidth"), fraction=fraction, source=source)


def _compute(entry: Table, sources: Table, architecture: str) -> dict[str, Peak]:
    compute, shares, assumed = entry.table("compute"), entry.table("shares"), _shares(architecture)
    tensor = entry.texts("tensor", ())
    compute.allow(*DTYPES)
    shares.allow("bandwidth", *DTYPES)
    peaks = {}
    for dtype in DTYPES:
        kind = "tensor" if dtype in tensor else "float32"
        fraction = shares.share(dtype, assumed.share(kind))
        source = sources.text(dtype, f"{entry.text('source')}; share: {assumed.text('source')}")
        if dtype in compute or dtype == "float32":
            peaks[dtype] = Peak(flops_per_s=compute.flops(dtype), fraction=fraction, source=source)
    unknown = [dtype for dtype in tensor if dtype not in peaks]
    if unknown:
        raise entry.wrong("tensor", f'expected dtypes of compute, got "{unknown[0]}"; compute has {", ".join(peaks)}')
    return peaks


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
