"""Figures of catalog files, as people write them: a number with its unit, so that a wrong unit is found.

Quantities as people write them, and as Trimaran keeps them.

Inside, everything is in SI base units: seconds, bytes, bytes/s, FLOP, FLOP/s. GiB is 2**30 bytes and GB is 10**9; bits
are `b`, bytes are `B`.
"""

import math
import re
from collections.abc import Mapping

from trimaran.base.errors import InputError

__all__ = ["parse_bytes", "parse_counted", "parse_flops", "parse_power", "parse_rate", "parse_seconds"]


_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIX = _DECIMAL | _BINARY
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([A-Za-z/]+)\s*")


def parse_bytes(text: str) -> int:
    """A size as people write it.

    Args:
        text: a number with a unit of bytes, such as "12GiB" or "500 MB"

    Returns:
        Size [bytes].

    Raises:
        InputError: no unit, an unknown unit, or a unit of bits

    Example:
        >>> parse_bytes("2 KiB"), parse_bytes("1.5GB")
        (2048, 1500000000)
    """
    number, unit = _split(text, example='a size such as "16 GiB"')
    prefix = unit.removesuffix("B")
    if prefix == unit or prefix not in _PREFIX:
        raise InputError(f'expected a size such as "16 GiB", got "{text}"', code="size.malformed", text=text)
    size = number * _PREFIX[prefix]
    if not math.isfinite(size):
        raise InputError(
            f'expected a size such as "16 GiB", got "{text}", which is without end', code="size.infinite", text=text
        )
    return round(size)


def parse_rate(text: str) -> float:
    """A transfer rate as people write it.

    Args:
        text: a number with a unit of bytes or bits a second, such as "25GB/s" or "1Gb/s"

    Returns:
        Rate [bytes/s].

    Raises:
        InputError: no unit, an unknown unit, or a rate that is not positive

    Example:
        >>> parse_rate("1Gb/s"), parse_rate("25 GB/s")
        (125000000.0, 25000000000.0)
    """
    example = 'a rate such as "25 GB/s" or "1 Gb/s"'
    number, unit = _split(text, example=example)
    body = unit.removesuffix("/s")
    prefix, size = body[:-1], {"B": 1.0, "b": 0.125}.get(body[-1:], 0.0)
    if body == unit or not size or prefix not in _PREFIX or number <= 0:
        raise InputError(f'expected {example}, got "{text}"', code="rate.malformed", text=text)
    rate = number * _PREFIX[prefix] * size
    if not math.isfinite(rate):
        raise InputError(f'expected {example}, got "{text}", which is without end', code="rate.infinite", text=text)
    return rate


def format_bytes(nbytes: float) -> str:
    """A size for people, in binary units.

    Args:
        nbytes: size [bytes]

    Example:
        >>> format_bytes(0), format_bytes(1536), format_bytes(3 * 2**30)
        ('0 B', '1.5 KiB', '3.0 GiB')
    """
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """A duration for people, with three significant digits.

    Args:
        seconds: duration [s]

    Example:
        >>> format_seconds(0.01234), format_seconds(2.5e-6), format_seconds(90)
        ('12.3 ms', '2.50 µs', '90.0 s')
    """
    if seconds == 0:
        return "0 s"
    if not math.isfinite(seconds):
        return str(seconds)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def format_rate(bytes_per_s: float) -> str:
    """A transfer rate for people, in decimal units.

    Args:
        bytes_per_s: rate [bytes/s]

    Example:
        >>> format_rate(25e9)
        '25.0 GB/s'
    """
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3)):
        if abs(bytes_per_s) >= size:
            return f"{_three_digits(bytes_per_s / size)} {unit}"
    return f"{_three_digits(bytes_per_s)} B/s"


def format_bit_rate(bytes_per_s: float) -> str:
    """The rate of a network link for people, in decimal units of bits.

    Args:
        bytes_per_s: rate [bytes/s]

    Example:
        >>> format_bit_rate(125e6), format_bit_rate(25e6), format_bit_rate(312.5e6)
        ('1 Gb/s', '200 Mb/s', '2.5 Gb/s')
    """
    for unit, size in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if bytes_per_s * 8 >= size:
            return f"{bytes_per_s * 8 / size:g} {unit}"
    return f"{bytes_per_s * 8:g} b/s"


def format_count(count: int, noun: str) -> str:
    """A number of things for people.

    Args:
        count: how many
        noun: one of them, with a plural in -s

    Example:
        >>> format_count(1, "device"), format_count(8, "device")
        ('1 device', '8 devices')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


_DURATIONS = (
    ("days", 86400.0, 4.0),
    ("h", 3600.0, 2.0),
    ("min", 60.0, 2.0),
    ("s", 1.0, 1.0),
    ("ms", 1e-3, 1.0),
    ("µs", 1e-6, 1.0),
)
"""Units of durations, their size [s], and from how many of them on they are used."""


def format_duration(seconds: float, *, unit_of: float | None = None) -> str:
    """A duration for people, in the largest unit of which it has some.

    Args:
        seconds: of a training [s]
        unit_of: another duration, whose unit is used [s]; None: this one

    Example:
        >>> format_duration(12.3), format_duration(2585.0), format_duration(140_052.0), format_duration(1e6)
        ('12.3 s', '43.1 min', '38.9 h', '11.6 days')
        >>> format_duration(9000.0), format_duration(9000.0, unit_of=2585.0), format_duration(0.783, unit_of=1.06)
        ('2.50 h', '150 min', '0.78 s')
    """
    leading = seconds if unit_of is None else unit_of
    for unit, size, enough in _DURATIONS:
        if leading >= enough * size:
            return f"{_three_digits(seconds / size)} {unit}"
    return format_seconds(seconds)


def _split(text: str, *, example: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError(f'expected {example}, got "{text}"', code="quantity.malformed", text=text)
    return float(match[1]), match[2]


def _three_digits(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{min(digits, 2)}f}"


_NUMBER = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([^\s0-9.].*)", re.IGNORECASE)
_FLOPS = {"PFLOP/s": 1e15, "TFLOP/s": 1e12, "GFLOP/s": 1e9}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_COUNTED = re.compile(r"([0-9]+)\s*x?\s+(\S+)")


def parse_flops(text: str) -> float:
    """Arithmetic per second.

    Args:
        text: such as "15.7 TFLOP/s"

    Returns:
        Rate [FLOP/s].

    Raises:
        InputError: no unit or another one

    Example:
        >>> parse_flops("15.7 TFLOP/s")
        15700000000000.0
    """
    return _with_unit(text, _FLOPS, example='arithmetic per second such as "15.7 TFLOP/s"')


def parse_seconds(text: str) -> float:
    """A duration.

    Args:
        text: such as "1.5 us"

    Returns:
        Duration [s].

    Raises:
        InputError: no unit or another one
    """
    return _with_unit(text, _SECONDS, example='a duration such as "1.5 us"')


def parse_power(text: str) -> float:
    """Electric power.

    Args:
        text: such as "300 W"

    Returns:
        Power [W].

    Raises:
        InputError: no unit or another one
    """
    return _with_unit(text, {"W": 1.0}, example='a power such as "300 W"')


def parse_counted(text: str) -> tuple[int, str]:
    """A count and a name.

    Args:
        text: such as "4 ib-edr" or "4 x ib-edr"; a name alone is one of it

    Returns:
        Count and name.

    Raises:
        InputError: no name, or none of it

    Example:
        >>> parse_counted("4x ib-edr"), parse_counted("ib-edr")
        ((4, 'ib-edr'), (1, 'ib-edr'))
    """
    if re.fullmatch(r"[a-z][^\s]*", text.strip()):
        return 1, text.strip()
    found = _COUNTED.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise InputError(f'expected a count and a name such as "4 ib-edr", got "{text}"', text=text)
    return int(found[1]), found[2]


def _with_unit(text: str, units: Mapping[str, float], *, example: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    value = float(found[1]) * units.get(found[2], 0.0) if found else 0.0
    if value <= 0:
        raise InputError(f'expected {example}, got "{text}"', text=text)
    return value
