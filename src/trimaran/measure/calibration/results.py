"""The measurements of a machine as one value: its devices, its links, its noise, and the costs that plans use.

The cost tables are those of `measure_costs`, found by their fingerprint: one for the ranks of this machine, and one for
each rate limit of the links between them. The other figures are for people and describe the machine.

Calibrations as JSON files, and the one of this machine that is kept.

A file carries a digest of its content, so that a truncated or edited one is refused. The one that
is kept is next to the measured costs, in `calibrations/<machine>.json` of the cache directory; a later calibration of
the same machine replaces it.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from trimaran.base.decoding import check_version, decode_object, from_plain
from trimaran.base.errors import CorruptDataError, InputError
from trimaran.base.files import put_in_place, read_bytes
from trimaran.measure.cache import cache_directory, cache_written, read_kept
from trimaran.pricing.noise import Noise
from trimaran.pricing.table_files import decode_table, encode_table
from trimaran.pricing.tables import CostTable, Curve, Fingerprint
from trimaran.pricing.transfers import HOST
from trimaran.pricing.types import Cost, Interference

# What may differ between two tables of one machine.
_NOT_THE_MACHINE = ("ranks", "link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 90 % interval.

    Attributes:
        value: the figure
        low: lower end of the interval
        high: upper end of the interval
        source: how it was found
    """

    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRate:
    """How fast square matrices are multiplied, in float32.

    Attributes:
        width: rows and columns of each matrix
        flops_per_s: of one device [FLOP/s]
    """

    width: int
    flops_per_s: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """Rates of one device while all devices are busy with the same work.

    Attributes:
        name: of the device
        kind: "cpu" or "cuda"
        count: devices alike that were busy
        products: products of matrices, by size
        copy_bytes_per_s: memory read and written by a large copy [bytes/s]
        axpy_bytes_per_s: memory read and written by `y += a * x` on large vectors [bytes/s]
        operator_s: time that the host spends on an operator with nothing to do [s]
    """

    name: str
    kind: str
    count: int
    products: tuple[ProductRate, ...]
    copy_bytes_per_s: Estimate
    axpy_bytes_per_s: Estimate
    operator_s: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """Duration and rate of a transfer between ranks of this machine.

    Attributes:
        rate_limit: of the links, such as "1 Gb/s"; empty: none
        kind: "SEND" for a message, or the token of a collective, such as "AR"
        ranks: size of the group; 2 for a message
        small_s: time of the smallest one that was tried [s]
        bytes_per_s: bytes of the largest one that was tried over its time [bytes/s]
        interference: how much it and compute slow each other down; None where it was not tried
    """

    rate_limit: str
    kind: str
    ranks: int
    small_s: Estimate
    bytes_per_s: Estimate
    interference: Interference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFigures:
    """Figures of a machine, for people.

    Attributes:
        fingerprint: where and how it was measured
        date: when it was finished, such as "2026-11-20T09:30:00+00:00"
        devices: the devices, one entry for those that are alike
        links: the transfers between them
        noise: how far identical runs are from each other, by number of ranks
    """

    fingerprint: Fingerprint
    date: str
    devices: tuple[DeviceFigures, ...]
    links: tuple[LinkFigures, ...]
    noise: tuple[Noise, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(MachineFigures):
    """The measurements of a machine.

    Attributes:
        tables: costs, each table with its fingerprint
    """

    tables: tuple[CostTable, ...]


def reciprocal(cost: Cost, amount: float) -> Estimate:
    """A duration as a rate.

    Args:
        cost: duration
        amount: of work, such as FLOP or bytes

    Example:
        >>> reciprocal(Cost(2.0, 1.0, 4.0, "measured"), 8.0)
        Estimate(value=4.0, low=2.0, high=8.0, source='measured')
    """
    return Estimate(value=amount / cost.seconds, low=amount / cost.high, high=amount / cost.low, source=cost.source)


def duration(cost: Cost) -> Estimate:
    """A duration as an estimate [s]."""
    return Estimate(value=cost.seconds, low=cost.low, high=cost.high, source=cost.source)


def link_figures(tables: Iterable[CostTable]) -> tuple[LinkFigures, ...]:
    """The transfers of some tables, for people.

    Args:
        tables: with curves
    """
    return tuple(
        LinkFigures(
            rate_limit=table.fingerprint.link,
            kind=key.kind,
            ranks=key.ranks,
            interference=table.interference.get(key.kind),
            **_ends(curve),
        )
        for table in tables
        for key, curve in sorted(table.curves.items())
        if not key.kind.endswith(HOST)
    )


def check_machine(calibration: Calibration, here: Fingerprint, *, source: str) -> None:
    """Refuse the calibration of another machine.

    Args:
        calibration: what is to be used
        here: this machine; its ranks and links do not count
        source: what to call the calibration in errors

    Raises:
        InputError: the machines differ, with what differs
    """
    differ = [
        f"{name}: {there!r} there, {ours!r} here"
        for name, there, ours in _machine(calibration.fingerprint, here)
        if there != ours
    ]
    if differ:
        raise InputError(
            f"{source} is the calibration of another machine ({'; '.join(differ)}): calibrate this one",
            code="calibration.other-machine",
            source=source,
            differ=tuple(differ),
        )


def _machine(there: Fingerprint, here: Fingerprint) -> Iterator[tuple[str, object, object]]:
    for name in (item.name for item in fields(Fingerprint)):
        if name not in _NOT_THE_MACHINE:
            yield name, getattr(there, name), getattr(here, name)


def _ends(curve: Curve) -> dict[str, Estimate]:
    (_, small), (nbytes, large) = curve[0], curve[-1]
    return {"small_s": duration(small), "bytes_per_s": reciprocal(large, nbytes)}


CALIBRATION_VERSION = 2

_RENAMED = {"held_to": "rate_limit"}
"""Keys of links in version 1, and their names since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBody(MachineFigures):
    """The content of a calibration file without its version and its digest.

    Attributes:
        costs: cost tables as in the cache, one for the machine and one for each rate limit of its links
    """

    costs: tuple[dict[str, Any], ...]


def encode_calibration(calibration: Calibration) -> bytes:
    """A calibration as JSON; the same bytes for equal ones."""
    body = CalibrationBody(
        costs=tuple(msgspec.json.decode(encode_table(table)) for table in calibration.tables), **_figures(calibration)
    )
    content = msgspec.to_builtins(body)
    whole = {"schema_version": CALIBRATION_VERSION, "digest": _digest(content), **content}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def decode_calibration(data: bytes, *, source: str = "calibration") -> Calibration:
    """The calibration in a JSON text that `encode_calibration` made.

    Args:
        data: the text
        source: what to call it in errors

    Raises:
        CorruptDataError: truncated or edited
        InputError: JSON, but no calibration; or written by another version of Trimaran
    """
    plain = decode_object(data, source=source, advice="calibrate again")
    version = check_version(plain, 1, CALIBRATION_VERSION, source=source)
    digest, content = plain.pop("digest", None), plain
    body = from_plain(_renamed(content) if version == 1 else content, CalibrationBody, source=source)
    if digest != _digest(content):
        raise CorruptDataError(
            f"{source} was edited or damaged after it was written, its digest does not match: calibrate again",
            code="calibration.digest-mismatch",
            source=source,
        )
    tables = tuple(decode_table(msgspec.json.encode(table), origin=source) for table in body.costs)
    return Calibration(tables=tables, **_figures(body))


def _figures(figures: MachineFigures) -> dict[str, Any]:
    return {item.name: getattr(figures, item.name) for item in fields(MachineFigures)}


def _renamed(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a file of version 1, by the names of today."""
    links = content.get("links")
    if not isinstance(links, list) or not all(isinstance(link, dict) for link in links):
        return content
    return content | {"links": [{_RENAMED.get(name, name): value for name, value in link.items()} for link in links]}


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file.

    Raises:
        InputError: no such file, no calibration, or written by another version of Trimaran
        CorruptDataError: truncated or edited
    """
    return decode_calibration(read_bytes(path), source=str(path))


def kept_path(fingerprint: Fingerprint) -> Path:
    """Where the calibration of a machine is kept, for any number of ranks and any links."""
    machine = replace(fingerprint, ranks=0, link="")
    values = [getattr(machine, item.name) for item in fields(Fingerprint)]
    digest = hashlib.sha256(msgspec.json.encode(values)).hexdigest()[:16]
    return cache_directory() / "calibrations" / f"{digest}.json"


def keep_calibration(calibration: Calibration) -> Path:
    """Keep a calibration as that of its machine.

    Returns:
        Where it is.

    Raises:
        EnvironmentProblem: the cache cannot be written
    """
    path = kept_path(calibration.fingerprint)
    with cache_written(path, "the calibration"):
        put_in_place(path, encode_calibration(calibration))
    return path


def kept_calibration(fingerprint: Fingerprint) -> Calibration | None:
    """The calibration that is kept of a machine; None where there is none that can be used."""
    path = kept_path(fingerprint)
    return read_kept(path, partial(decode_calibration, source=str(path)), then="going on without it")


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()
