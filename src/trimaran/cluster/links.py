"""Kinds of links, by name: `links.toml`."""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources

from trimaran.cluster.machines import LinkType
from trimaran.cluster.reading import Table, did_you_mean
from trimaran.errors import InputError


@functools.cache
def link_types() -> Mapping[str, LinkType]:
    """Every kind of link of the catalog, by name."""
    text = (resources.files("trimaran.cluster") / "links.toml").read_text(encoding="utf-8")
    read = [read_link(entry) for entry in Table(tomllib.loads(text), file="links.toml").tables("links")]
    return {link.name: link for link in read}


def find_link(name: str) -> LinkType:
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


def read_link(entry: Table) -> LinkType:
    """The kind of link of a table.

    Raises:
        InputError: a figure is missing, has a wrong unit or is not a figure; a key is unknown
    """
    entry.allow("name", "kind", "raw", "sustained", "ring", "latency", "source")
    raw = entry.rate("raw")
    link = LinkType(
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
