"""What was measured of a machine, as one value: its devices, its links, its noise, and the costs that plans take.

The cost tables are those of `measure_costs`, found by their fingerprint: one for the ranks of this machine, and one for
each rate that the links between them were held to. The other figures are for people, and say what the tables are made
on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from trimaran.costs.noise import Noise
from trimaran.costs.tables import CostTable, Curve, Fingerprint
from trimaran.costs.transfers import HOST
from trimaran.costs.types import Cost, Interference
from trimaran.errors import InputError

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
    """What one device does while all are busy with the same.

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
    """What a transfer takes between ranks of this machine.

    Attributes:
        held_to: rate that the links were held to, such as "1 Gb/s"; empty: nothing
        kind: "SEND" for a message, or the token of a collective, such as "AR"
        ranks: size of the group; 2 for a message
        small_s: time of the smallest one that was tried [s]
        bytes_per_s: bytes of the largest one that was tried over its time [bytes/s]
        interference: how much it and compute slow each other down; None where it was not tried
    """

    held_to: str
    kind: str
    ranks: int
    small_s: Estimate
    bytes_per_s: Estimate
    interference: Interference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured of a machine.

    Attributes:
        fingerprint: where and how
        date: when it was finished, such as "2026-11-20T09:30:00+00:00"
        devices: the devices, one entry for those that are alike
        links: the transfers between them
        noise: how far identical runs are from each other, by number of ranks
        tables: costs, each table with a fingerprint of its own
    """

    fingerprint: Fingerprint
    date: str
    devices: tuple[DeviceFigures, ...]
    links: tuple[LinkFigures, ...]
    noise: tuple[Noise, ...]
    tables: tuple[CostTable, ...]


def reciprocal(cost: Cost, amount: float) -> Estimate:
    """A duration as a rate: so much in that time.

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
    """The transfers of some tables, as people want to see them.

    Args:
        tables: with curves
    """
    return tuple(
        LinkFigures(
            held_to=table.fingerprint.link,
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
