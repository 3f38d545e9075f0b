"""The fitted constants of the curves: a table of numbers with names, kept in `constants.toml`.

`benchmarks/fits/operations.py` writes that file. Names are dotted, from the table to the figure, such as
"product.vector.depth". Nothing in it belongs to one network, one device or one published figure: a constant is of a
unit, an architecture, a kind of kernel, a framework or a library.
"""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

Constants = Mapping[str, float]
"""Fitted constants by dotted name."""


@functools.cache
def constants() -> Constants:
    """The constants that the package brings."""
    file = resources.files("trimaran.costs.operations") / "constants.toml"
    return MappingProxyType(dict(_flat(tomllib.loads(file.read_text(encoding="utf-8")), "")))


def _flat(table: Mapping[str, Any], above: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in table.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, Mapping):
            found.extend(_flat(value, path))
        elif isinstance(value, int | float):
            found.append((path, float(value)))
    return found
