"""The fitted constants of the curves: a table of numbers with names, kept in `constants.toml`.

`benchmarks/fits/operations.py` writes that file. Names are dotted, from the table to the figure, such as
"product.vector.depth". Nothing in it belongs to one network, one device or one published figure: a constant is of a
unit, an architecture, a kind of kernel, a framework or a library.
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from trimaran.base.files import packaged_toml
from trimaran.machine.types import Device

Constants = Mapping[str, float]
"""Fitted constants by dotted name."""


@functools.cache
def constants() -> Constants:
    """The constants that the package brings."""
    return MappingProxyType(dict(_flat(packaged_toml("trimaran.pricing.kernels", "constants.toml"), "")))


def _flat(table: Mapping[str, Any], above: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in table.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, Mapping):
            found.extend(_flat(value, path))
        elif isinstance(value, int | float):
            found.append((path, float(value)))
    return found


def architecture_of(device: Device) -> str:
    """Name under which constants of a device are kept.

    Example:
        >>> from trimaran.machine.catalog import find_device
        >>> architecture_of(find_device("rtx-3090")), architecture_of(find_device("mi210"))
        ('ga10x', 'cdna')
    """
    return "cdna" if device.architecture.startswith("cdna") else device.architecture


_OF_LAYERS = {"elementwise": 0.72, "copy": 0.24, "reduction": 0.04}
"""Share of the bytes of a decoder's layer, without products and attention, that kernels of a kind move; traces of three
layers have it so. Copies change types and join halves."""


def eager_bytes_per_s(device: Device, kind: Literal["layer", "copy", "optimizer"]) -> float:
    """Rate at which large kernels of PyTorch, one an operation, read and write a device's memory [bytes/s].

    Args:
        device: of the catalog
        kind: of the kernels, or "layer" for those of a decoder's layer together

    Example:
        Those of a layer reach 52 % of an H100's 3.35 TB/s.

        >>> from trimaran.machine.catalog import find_device
        >>> round(eager_bytes_per_s(find_device("h100"), "layer") / 3.35e12, 2)
        0.52
    """
    table = constants()
    shares = _OF_LAYERS if kind == "layer" else {kind: 1.0}
    memory = table.get(f"architecture.{architecture_of(device)}.memory", table["architecture.other.memory"])
    inverse = sum(share / table[f"memory.{name}"] for name, share in shares.items())
    return device.bandwidth.bytes_per_s * memory / (inverse * table["traffic.pytorch"])
