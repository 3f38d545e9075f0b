"""Curves that were published, by name: reference convergence points, and projections that are known only as ratios.

`catalog.toml` is written by benchmarks/convergence/catalog.py from tables of published points.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from trimaran.cluster.reading import did_you_mean
from trimaran.costs.convergence.curve import Curve, fit_curve
from trimaran.costs.convergence.files import read_curve, table_of
from trimaran.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DoublingRatio:
    """What a study says of one doubling of the batch, where it names neither batch nor epochs.

    Attributes:
        name: in the catalog
        network: reference of the network
        ratio: epochs at twice the batch over epochs at the batch
        source: how it is known
    """

    name: str
    network: str
    ratio: float
    source: str


def catalog_names() -> tuple[str, ...]:
    """Names of the curves, sorted."""
    return tuple(sorted(_catalog()["curves"]))


def doubling_ratios() -> tuple[DoublingRatio, ...]:
    """Projections that are known only as the ratio of one doubling."""
    return tuple(
        DoublingRatio(name=name, network=entry["network"], ratio=float(entry["ratio"]), source=entry["source"])
        for name, entry in sorted(_catalog()["ratios"].items())
    )


def find_curve(name_or_path: str | Path) -> Curve:
    """A curve by its name in the catalog, or of a file.

    Args:
        name_or_path: such as "resnet50", or a curve file or a table of runs

    Raises:
        InputError: no such name and no such file, or a file that is no curve
    """
    text = str(name_or_path)
    name = text.strip().lower().replace("_", "-")
    if name in _catalog()["curves"]:
        return _curve(name)
    path = Path(text)
    if _exists(path):
        return read_curve(path)
    for known in doubling_ratios():
        if known.name == name:
            raise InputError(
                f'"{name}" is no curve: the study tells only that twice the batch needs {known.ratio:g} times the '
                "epochs, and not at which batch; measure one with trimaran converge",
                code="curve.ratio-only",
                name=name,
                ratio=known.ratio,
            )
    raise InputError(
        f'"{text}": no curve of the catalog and no file{did_you_mean(name, catalog_names())}',
        code="curve.unknown",
        name=text,
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        # Too long for the name of a file, or with a null in it.
        return False


@functools.cache
def _curve(name: str) -> Curve:
    return fit_curve(table_of(_catalog()["curves"][name], source=f'catalog curve "{name}"'))


@functools.cache
def _catalog() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("trimaran.costs.convergence").joinpath("catalog.toml").read_text("utf-8")
    return tomllib.loads(text)
