"""Devices that one need not have, found by name.

Files of `cluster/devices` hold one generation each, every figure with its source; a user's own file has the same form.
Reading all of them takes some 10 ms, turning an entry into a device is put off until somebody asks for it.

Left out: links between devices, which are a machine's (`nodes`), and the host's own memory.
"""

import difflib
import functools
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources

from trimaran.cluster.catalog_types import Bandwidth, CatalogDevice, Copies, Launch, Memory, Peak
from trimaran.cluster.device_entries import read_device
from trimaran.cluster.reading import Table
from trimaran.errors import InputError

__all__ = ["Bandwidth", "CatalogDevice", "Copies", "Launch", "Memory", "Peak", "catalog", "find_device", "squeezed"]


class Catalog(Mapping[str, CatalogDevice]):
    """Every device of the catalog, by name; each is read when it is asked for."""

    def __init__(self, entries: Mapping[str, Table]) -> None:
        self._entries = entries
        self._read: dict[str, CatalogDevice] = {}

    def __getitem__(self, name: str) -> CatalogDevice:
        if name not in self._read:
            self._read[name] = read_device(self._entries[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@functools.cache
def catalog() -> Mapping[str, CatalogDevice]:
    """Every device of the catalog, by name, generation after generation."""
    return Catalog({entry.text("name"): entry for entry in entries_of("devices")})


@functools.cache
def entries_of(kind: str) -> tuple[Table, ...]:
    """All entries of the catalog's files of a kind, as tables.

    Args:
        kind: "devices" or "nodes", which is also the folder
    """
    folder = resources.files("trimaran.cluster") / kind
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    found: list[Table] = []
    for file in files:
        document = Table(tomllib.loads(file.read_text(encoding="utf-8")), file=f"{kind}/{file.name}")
        found += document.tables(kind)
    return tuple(found)


@functools.cache
def _names() -> Mapping[str, str]:
    return {
        squeezed(name): entry.text("name")
        for entry in entries_of("devices")
        for name in (entry.text("name"), *entry.texts("aliases", ()))
    }


def find_device(name: str) -> CatalogDevice:
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
