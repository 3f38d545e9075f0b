"""What a person may ask to be otherwise: faster links, free loading, less memory, more devices.

A change turns a problem into another one. Here they are read and named; `altered.py` applies
them. What was measured is scaled, never measured again:

    link=x2        links move bytes twice as fast; latencies stay
    link=pcie3x16  every pair of devices is joined by a link of its own of that kind (`cluster/links.toml`)
    link=10Gb/s    links are held to that rate, which comes on top of what a transfer takes without; a link that is
                   held already is released in proportion, as far as it is held
    latency=x0.5   half the latency of every transfer (0: none)
    wire=x0.5      half the bytes on the wire, as 16 bits for 32 (what converting them takes is left out)
    interference=0 communication takes nothing from compute beside it, and the other way around
    compute=x2     forward, backward and update twice as fast
    load=0         loading takes no time (x0.5: half of it)
    memory=8GiB    each device has that much (x2: twice as much)
    devices=4      as many devices, each like those there are and with the others' links

With rates (`link`, `compute`) a factor multiplies the rate, with amounts it multiplies the amount. Several changes at
once are separated by commas.
"""

import difflib
from dataclasses import dataclass, replace

from trimaran.cluster.links import find_link, link_types
from trimaran.errors import InputError
from trimaran.units import format_bit_rate, format_bytes, parse_bytes, parse_rate

MOST_DEVICES = 64
"""Beyond this a what-if says nothing: costs of so few measured ranks do not carry so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that would be otherwise.

    Attributes:
        what: "link", "latency", "wire", "interference", "compute", "load", "memory" or "devices"
        factor: on the rate or amount; None where `value` is given
        value: rate [bytes/s], memory [bytes] or devices, in place of what there is
        kind: of link, by its name in the catalog; `value` is then its rate
        also: what else is otherwise at the same time
    """

    what: str
    factor: float | None = None
    value: float | None = None
    kind: str = ""
    also: tuple["Change", ...] = ()

    @property
    def scale(self) -> float:
        """The factor; 1 where there is none."""
        return 1.0 if self.factor is None else self.factor

    @property
    def text(self) -> str:
        """As a person writes it.

        Example:
            >>> Change(what="link", value=1.25e8).text, Change(what="load", factor=0.0).text
            ('link=1Gb/s', 'load=0')
        """
        if self.also:
            return ",".join(change.text for change in self.each)
        if self.factor is not None:
            return f"{self.what}=0" if self.factor == 0 else f"{self.what}=x{self.factor:g}"
        return f"{self.what}={self._value().replace(' ', '')}"

    @property
    def name(self) -> str:
        """For people.

        Example:
            >>> Change(what="link", factor=2.0).name, Change(what="wire", factor=0.5).name
            ('links × 2', 'bytes on the wire × 0.5')
            >>> Change(what="load", factor=0.0).name, Change(what="devices", value=3).name
            ('no loading', 'devices: 3')
        """
        if self.also:
            return "; ".join(change.name for change in self.each)
        words = _WORDS[self.what]
        if self.factor is None:
            return f"{words}: {self._value()}"
        return f"no {words}" if self.factor == 0 else f"{words} × {self.factor:g}"

    @property
    def each(self) -> tuple["Change", ...]:
        """The changes that are made at once, one by one."""
        return (replace(self, also=()), *self.also)

    def _value(self) -> str:
        value = self.value or 0.0
        if self.kind:
            return self.kind
        if self.what == "link":
            return format_bit_rate(value)
        return format_bytes(value) if self.what == "memory" else f"{value:.0f}"


_WORDS = {
    "link": "links",
    "latency": "latency",
    "wire": "bytes on the wire",
    "interference": "interference",
    "compute": "compute",
    "load": "loading",
    "memory": "memory",
    "devices": "devices",
}
_LEAST_FACTOR, _MOST_FACTOR = 1e-6, 1e6
_RATES = frozenset({"link", "compute"})
_ONLY_FACTORS = frozenset({"latency", "wire", "interference", "compute", "load"})


def parse_change(text: str) -> Change:
    """A change as it is written on the command line, or several at once.

    Args:
        text: such as "link=10Gb/s", "compute=x2", "load=0", "link=pcie3x16,memory=40GiB"

    Raises:
        InputError: an unknown name, a value that means nothing there, or the same thing twice

    Example:
        >>> parse_change("compute=x2").factor, parse_change("memory=1KiB").value
        (2.0, 1024)
        >>> [change.text for change in parse_change("link=nvlink2,memory=1KiB").each]
        ['link=nvlink2', 'memory=1.0KiB']
    """
    first, *others = (_parse_one(part) for part in text.split(","))
    names = [change.what for change in (first, *others)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f'what-if "{text}": {twice} is changed twice; say it once', what_if=text)
    return replace(first, also=tuple(others))


def _parse_one(text: str) -> Change:
    what, equals, value = (part.strip() for part in text.partition("="))
    what = what.lower()
    if what not in _WORDS:
        near = difflib.get_close_matches(what, _WORDS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"choose one of {', '.join(_WORDS)}"
        raise InputError(
            f'what-if "{text}": nothing is called "{what}"; {hint}', code="what-if.unknown-name", what_if=text
        )
    if not equals or not value:
        raise InputError(
            f'what-if "{text}": expected a value, such as "{what}={_EXAMPLES[what]}"',
            code="what-if.no-value",
            what_if=text,
        )
    if value[0] in "x×" or value == "0":
        return Change(what=what, factor=_factor(what, value.lstrip("x×"), text))
    if what in _ONLY_FACTORS:
        raise InputError(
            f'what-if "{text}": expected a factor for {what}, such as "{what}={_EXAMPLES[what]}"',
            code="what-if.factor-expected",
            what_if=text,
        )
    if what == "link" and not value[0].isdigit():
        return _named_link(value, text)
    return Change(what=what, value=_parse_value(what, value, text))


_EXAMPLES = {
    "link": "10Gb/s",
    "latency": "0",
    "wire": "x0.5",
    "interference": "0",
    "compute": "x2",
    "load": "0",
    "memory": "8GiB",
    "devices": "4",
}


def _named_link(name: str, text: str) -> Change:
    lower = name.lower()
    if lower not in link_types():
        near = difflib.get_close_matches(lower, link_types(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"links are {', '.join(link_types())}"
        raise InputError(
            f'what-if "{text}": no link is called "{name}"; {hint} Or give a rate, such as "link=10Gb/s"',
            code="what-if.unknown-link",
            what_if=text,
        )
    return Change(what="link", value=find_link(lower).bytes_per_s, kind=lower)


def _factor(what: str, digits: str, text: str) -> float:
    try:
        factor = float(digits)
    except ValueError:
        raise InputError(
            f'what-if "{text}": "{digits}" is not a number', code="what-if.not-a-number", what_if=text
        ) from None
    least_excluded = what in _RATES or what in ("memory", "devices", "wire")
    if not 0 <= factor < float("inf") or (least_excluded and factor == 0):
        raise InputError(
            f'what-if "{text}": a factor of {digits} on {what} means nothing', code="what-if.zero", what_if=text
        )
    if what == "devices":
        raise InputError(
            f'what-if "{text}": expected a number of devices, such as "devices=4"',
            code="what-if.count-expected",
            what_if=text,
        )
    if factor and not _LEAST_FACTOR <= factor <= _MOST_FACTOR:
        raise InputError(
            f'what-if "{text}": expected a factor from {_LEAST_FACTOR:g} to {_MOST_FACTOR:g} on {what}',
            code="what-if.factor-out-of-range",
            what_if=text,
        )
    return factor


def _parse_value(what: str, value: str, text: str) -> float:
    if what == "link":
        return parse_rate(value)
    if what == "memory":
        return parse_bytes(value)
    if not value.isdecimal() or not 1 <= int(value) <= MOST_DEVICES:
        raise InputError(
            f'what-if "{text}": expected a number of devices from 1 to {MOST_DEVICES}',
            code="what-if.bad-device-count",
            what_if=text,
        )
    return int(value)
