"""Quantities as people type them, and as Trimaran keeps and prints them.

Inside, everything is in SI base units: seconds, bytes, bytes/s, FLOP, FLOP/s, W. GiB is 2**30 bytes and GB is 10**9;
bits are `b`, bytes are `B`. One reader serves the command line, machine files and the API:

    sizes         80GB   80 GiB   1.5e9   512 bytes         a lone "gb" is a size, "Gb" are bits and no size
    rates         25 GB/s   1Gb/s   1Gbps   1 Gbit/s   1e9  "gbps" are bits, as networks are sold; "gb/s" is not clear
    durations     100us   1.5 ms   90   10min   2h          without a unit in seconds
    arithmetic    15.7 TFLOP/s   15.7 TFLOPS   1e12
    power         300 W   0.3 kW

A size or a rate without a unit is in bytes, from a million on: below that the unit was forgotten.
"""

import math
import re
from collections.abc import Mapping, Sequence

from trimaran.base.errors import InputError

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_BYTES = {f"{prefix}{unit}": float(size) for prefix, size in (_DECIMAL | _BINARY).items() for unit in ("B", "bytes")}
_BITS = {f"{prefix}{unit}": size / 8 for prefix, size in (_DECIMAL | _BINARY).items() for unit in ("b", "bit", "bits")}
_SIZES = _BYTES | {name.lower(): size for name, size in _BYTES.items() if name != "B"} | {"byte": 1.0}
"""Units of sizes [bytes]; in lower case too, as sizes are not written in bits."""

_RATES = {f"{name}{per}": size for name, size in (_BYTES | _BITS).items() for per in ("/s", "/sec", "ps")} | {
    f"{name.lower()}ps": size for name, size in _BITS.items() if name.endswith("b")
}
"""Units of rates [bytes/s]."""

_FLOPS = {
    f"{prefix}{unit}": float(size)
    for prefix, size in _DECIMAL.items()
    for unit in ("FLOP/s", "FLOPs/s", "FLOPS", "FLOPs", "flops")
}
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "min": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "days": 86400.0,
}
"""Units of durations [s]."""

_WATTS = {"W": 1.0, "kW": 1e3}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([^\s0-9.](?:.*\S)?)?\s*", re.IGNORECASE)
_HOURS_AND_MINUTES = re.compile(r"\s*([0-9]{1,6})\s*h\s*([0-5]?[0-9])\s*(?:m|min)?\s*", re.ASCII | re.IGNORECASE)
_COUNTED = re.compile(r"([0-9]{1,9})\s*x?\s+(\S+)")
LEAST_BYTES = 1e6
"""Sizes and rates from here on may come without a unit [bytes, bytes/s]."""

MOST_BYTES = 2**60
"""Of anything [bytes]."""
_BOUNDS: Mapping[str, tuple[float, float, str]] = {
    "size": (0.0, MOST_BYTES, "at most 1024 PiB"),
    "rate": (1.0, 1e15, "1 B/s to 1000 TB/s"),
    "arithmetic": (1e3, 1e18, "1 kFLOP/s to 1000 PFLOP/s"),
    "power": (1e-1, 1e6, "0.1 W to 1000 kW"),
    "duration": (0.0, 1e10, "at most 1e10 s"),
}
"""Least and most of each quantity in SI units, and how they are told: what no machine or training has is a slip."""

MOST_COUNTED = 10**9
"""Samples, devices, steps and whatever else is counted in whole numbers."""
MOST_LARGE = 1e18
"""What is counted in billions: tokens, documents."""
MOST_SEQUENCE = 2**24
"""Tokens of a sequence. The longest of a published model are 10 million (Llama 4 Scout, Meta, 2025)."""


def parse_bytes(given: str | int) -> int:
    """A size as people write it, or in bytes.

    Args:
        given: such as "12GiB", "500 MB" or "1e9"; 0, or bytes, a million or more: nobody means 12 bytes by 12

    Returns:
        Size [bytes].

    Raises:
        InputError: an unknown unit, a unit of bits, or none below a million

    Example:
        >>> parse_bytes("2 KiB"), parse_bytes("1.5GB"), parse_bytes("80gb"), parse_bytes("1e9")
        (2048, 1500000000, 80000000000, 1000000000)
    """
    text = "0B" if given == 0 and not isinstance(given, bool) else str(given)
    return round(_quantity(text, _SIZES, what="size", example='a size such as "16 GiB"', least=LEAST_BYTES))


def parse_memory(given: str | int) -> int:
    """Memory of a device, as people write it or in bytes, of which there is some.

    Args:
        given: as `parse_bytes` takes it

    Raises:
        InputError: no size, or none at all

    Example:
        >>> parse_memory("2 KiB"), parse_memory(2_000_000)
        (2048, 2000000)
    """
    return round(_positive(parse_bytes(given), str(given), 'memory such as "16 GiB"'))


def parse_rate(text: str) -> float:
    """A transfer rate as people write it.

    Args:
        text: a number with a unit of bytes or bits a second, such as "25GB/s", "1Gb/s" or "1Gbps"

    Returns:
        Rate [bytes/s].

    Raises:
        InputError: an unknown unit, none below a million, or a rate that is not positive

    Example:
        >>> parse_rate("1Gb/s"), parse_rate("1 Gbit/s"), parse_rate("1gbps"), parse_rate("25 GB/s")
        (125000000.0, 125000000.0, 125000000.0, 25000000000.0)
    """
    example = 'a rate such as "25 GB/s" or "1 Gb/s"'
    return _positive(_quantity(text, _RATES, what="rate", example=example, least=LEAST_BYTES), text, example)


def parse_seconds(text: str, *, needs_unit: bool = False) -> float:
    """A duration as people write it.

    Args:
        text: such as "1.5 us", "100ms", "10min", "1h30" or, in seconds, "90"
        needs_unit: a number alone is refused, where most are far below a second

    Returns:
        Duration [s].

    Raises:
        InputError: an unknown unit

    Example:
        >>> parse_seconds("100ms"), parse_seconds("90"), parse_seconds("2h"), parse_seconds("1h30")
        (0.1, 90.0, 7200.0, 5400.0)
    """
    clock = _HOURS_AND_MINUTES.fullmatch(text)
    if clock is not None:
        return int(clock[1]) * 3600.0 + int(clock[2]) * 60.0
    least = math.inf if needs_unit else 0.0
    example = 'a duration such as "10min", "1h30" or "1.5 us"'
    return _quantity(text, _SECONDS, what="duration", example=example, least=least)


def parse_flops(text: str) -> float:
    """Arithmetic per second.

    Args:
        text: such as "15.7 TFLOP/s"

    Returns:
        Rate [FLOP/s].

    Raises:
        InputError: an unknown unit, none below a million, or a rate that is not positive

    Example:
        >>> parse_flops("15.7 TFLOP/s"), parse_flops("15.7TFLOPS")
        (15700000000000.0, 15700000000000.0)
    """
    example = 'arithmetic per second such as "15.7 TFLOP/s"'
    return _positive(_quantity(text, _FLOPS, what="arithmetic", example=example, least=LEAST_BYTES), text, example)


def parse_power(text: str) -> float:
    """Electric power.

    Args:
        text: such as "300 W"

    Returns:
        Power [W].

    Raises:
        InputError: an unknown unit or none, or a power that is not positive

    Example:
        >>> parse_power("0.3 kW")
        300.0
    """
    example = 'a power such as "300 W"'
    return _positive(_quantity(text, _WATTS, what="power", example=example, least=math.inf), text, example)


_LARGE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def parse_large(text: str | float, *, what: str) -> float:
    """A large number as people write it, with thousands, millions, billions (or giga) and trillions as letters.

    Args:
        text: such as "15T", "300B" or "1.4e12"; a number as it is
        what: it counts, for the message

    Raises:
        InputError: no such number, or none above 0

    Example:
        >>> [parse_large(text, what="tokens") for text in ("15T", "1.4e12", "2 k")]
        [15000000000000.0, 1400000000000.0, 2000.0]
    """
    found = _QUANTITY.fullmatch(str(text).replace(",", "").replace("_", ""))
    factor = _LARGE.get((found[2] or "").lower()) if found else None
    value = float(found[1]) * factor if found and factor else 0.0
    if not 0.0 < value <= MOST_LARGE:
        raise InputError(
            f'expected {what} such as "15T", "300B" or "1.4e12", at most {MOST_LARGE:g}, got "{text}"',
            code="quantity.not-a-number",
            what=what,
            text=str(text),
        )
    return value


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


def whole_number(text: str, *, least: int = 0, most: int = MOST_COUNTED) -> int | None:
    """A whole number of decimal digits; None where a text is none, or has another value than wanted.

    Args:
        text: such as "16"; digits of other scripts and signs are none
        least: wanted
        most: wanted

    Example:
        >>> whole_number("16"), whole_number("16", most=8), whole_number("-1"), whole_number("9" * 5000)
        (16, None, None, None)
    """
    value = int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else -1
    return value if least <= value <= most else None


def _quantity(text: str, units: Mapping[str, float], *, what: str, example: str, least: float) -> float:
    """A number with one of these units, or from `least` on without one."""
    found = _QUANTITY.fullmatch(text)
    number = float(found[1]) if found else 0.0
    unit = re.sub(r"\s+", "", found[2] or "") if found else ""
    if found is None or (unit not in units and (unit or number < least)):
        forgotten = ": what is its unit?" if found and not unit else ""
        if found and forgotten and what == "size" and number > 0:
            forgotten = f': what is its unit? GiB are written "{found[1]}GiB"'
        if found and what == "size" and unit.upper() in ("K", "M", "G", "T"):
            forgotten = f': write "{found[1]}{unit.upper()}iB" or "{found[1]}{unit.upper()}B"'
        raise InputError(
            f'expected {example}, got "{text}"{forgotten}', code="quantity.malformed", what=what, text=text
        )
    value = number * (units[unit] if unit else 1.0)
    least_value, most, told = _BOUNDS[what]
    if value > most or 0 < value < least_value:
        raise InputError(
            f'expected {example}, {told}, got "{text}"', code="quantity.out-of-bounds", what=what, text=text
        )
    return value


def _positive(value: float, text: str, example: str) -> float:
    if value <= 0:
        raise InputError(f'expected {example}, got "{text}"', code="quantity.not-positive", text=text)
    return value


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


def format_figure(value: float, digits: int = 3) -> str:
    """A figure for people, with three significant digits or all before the point; large ones have no exponent.

    Args:
        value: what is counted or paid
        digits: significant ones

    Example:
        >>> format_figure(0.1234), format_figure(999.7), format_figure(20018.0, digits=4)
        ('0.123', '1,000', '20,018')
    """
    return f"{value:,.0f}" if round(abs(value)) >= 10**digits else f"{value:.{digits}g}"


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


def format_some(names: Sequence[object], most: int = 3) -> str:
    """The first of some names for people, and how many more there are.

    Args:
        names: in order
        most: that are written

    Example:
        >>> format_some(["a", "b"]), format_some([1, 2, 3, 4, 5])
        ('a, b', '1, 2, 3 and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def format_span(low: str, high: str, *, to: str = " to ") -> str:
    """An interval for people by its ends as they are shown: one figure where both look alike.

    Args:
        low: lower end
        high: upper end
        to: between them

    Example:
        >>> format_span("2.70 s", "3.90 s"), format_span("+19", "+19"), format_span("1.0", "1.2", to="–")
        ('2.70 s to 3.90 s', '+19', '1.0–1.2')
    """
    return low if low == high else f"{low}{to}{high}"


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


def _three_digits(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{min(digits, 2)}f}"
