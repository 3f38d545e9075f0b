"""Figures of catalog files, as people write them: a number with its unit, so that a wrong unit is found."""

import re
from collections.abc import Mapping

from trimaran.errors import InputError
from trimaran.units import parse_bytes, parse_rate

__all__ = ["parse_bytes", "parse_counted", "parse_flops", "parse_power", "parse_rate", "parse_seconds"]

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
    """So many of something.

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
