"""Tables of a TOML file, read with the path of every value, so that an error names the place to correct.

    rack.toml: devices[0].memory: expected a size such as "16 GiB", got "16"

Values are checked as they are asked for. `allow` says first which keys there may be.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from trimaran.base import units as figures
from trimaran.base.errors import InputError, did_you_mean

Value = TypeVar("Value")


class Table:
    """One table of a file.

    Args:
        values: as TOML has them
        file: that they come from
        path: of this table in the file, such as "devices[0]"; "" for the whole file
    """

    def __init__(self, values: Mapping[str, object], *, file: str, path: str = "") -> None:
        self.values = values
        self.file = file
        self.path = path

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def place(self, key: str) -> str:
        """File and path of a key."""
        return f"{self.file}: {self.path}.{key}" if self.path else f"{self.file}: {key}"

    def wrong(self, key: str, expected: str) -> InputError:
        """The error that the value of a key is not what was expected."""
        return InputError(
            f"{self.place(key)}: {expected}",
            code="machine-file.wrong-value",
            file=self.file,
            key=key,
            value=self.values.get(key),
        )

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty.

        Raises:
            InputError: it is missing and there is no default, or it is something else
        """
        value = self._value(key, default, expected="a text")
        if not isinstance(value, str) or (not value.strip() and default is None):
            raise self.wrong(key, f"expected a text, got {_shown(value)}")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of texts."""
        value = self._value(key, default, expected="a list of texts")
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, f"expected a list of texts, got {_shown(value)}")
        return tuple(value)

    def whole(self, key: str, default: int | None = None, *, least: int = 1, most: int | None = None) -> int:
        """A whole number."""
        expected = f"a whole number of at least {least}" + (f", at most {most:,}" if most is not None else "")
        value = self._value(key, default, expected=expected)
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most or value) < value:
            raise self.wrong(key, f"expected {expected}, got {_shown(value)}")
        return value

    def share(self, key: str, default: float | None = None) -> float:
        """A share above 0 and up to 1."""
        value = self._value(key, default, expected="a share between 0 and 1")
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
            raise self.wrong(key, f"expected a share between 0 and 1, got {_shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default, expected="true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, f"expected true or false, got {_shown(value)}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A size such as "16 GiB" [bytes]."""
        nbytes = self._figure(key, figures.parse_bytes, default, expected='a size such as "16 GiB"')
        if nbytes == 0 and default != 0:
            raise self.wrong(key, f'expected a size such as "16 GiB", got {_shown(self.values.get(key))}')
        return nbytes

    def rate(self, key: str, default: float | None = None) -> float:
        """A rate such as "25 GB/s" [bytes/s]."""
        return self._figure(key, figures.parse_rate, default, expected='a rate such as "25 GB/s" or "1 Gb/s"')

    def flops(self, key: str) -> float:
        """Arithmetic per second such as "15.7 TFLOP/s" [FLOP/s]."""
        return self._figure(key, figures.parse_flops, None, expected='arithmetic per second such as "15.7 TFLOP/s"')

    def power(self, key: str, default: float | None = None) -> float:
        """A power such as "300 W" [W]."""
        return self._figure(key, figures.parse_power, default, expected='a power such as "300 W"')

    def seconds(self, key: str, default: float | None = None) -> float:
        """A duration such as "1.5 us" [s]."""
        return self._figure(
            key, partial(figures.parse_seconds, needs_unit=True), default, expected='a duration such as "1.5 us"'
        )

    def counted(self, key: str) -> tuple[int, str] | None:
        """A count with a name, such as "4 ib-edr"; None where the key is missing."""
        if key not in self.values:
            return None
        return self._figure(key, figures.parse_counted, None, expected='a count and a name such as "4 ib-edr"')

    def table(self, key: str) -> "Table":
        """A table inside this one; an empty one where it is missing."""
        value = self._value(key, {}, expected="a table")
        if not isinstance(value, dict):
            raise self.wrong(key, f"expected a table, got {_shown(value)}")
        return Table(value, file=self.file, path=f"{self.path}.{key}" if self.path else key)

    def tables(self, key: str) -> tuple["Table", ...]:
        """The tables of a list; none where it is missing."""
        value = self._value(key, [], expected="a list of tables")
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, f"expected tables headed [[{key}]], got {_shown(value)}")
        prefix = f"{self.path}.{key}" if self.path else key
        return tuple(Table(item, file=self.file, path=f"{prefix}[{index}]") for index, item in enumerate(value))

    def allow(self, *keys: str) -> None:
        """Say which key of this table is none of these.

        Raises:
            InputError: there is one
        """
        for key in self.values:
            if key not in keys:
                raise self.wrong(key, f"unknown key{did_you_mean(key, keys)}")

    def _value(self, key: str, default: object, *, expected: str) -> object:
        if key in self.values:
            return self.values[key]
        if default is None:
            raise self.wrong(key, f"missing; expected {expected}")
        return default

    def _figure(self, key: str, parse: Callable[[str], Value], default: Value | None, *, expected: str) -> Value:
        if key not in self.values and default is not None:
            return default
        value = self._value(key, None, expected=expected)
        if not isinstance(value, str):
            raise self.wrong(key, f"expected {expected}, got {_shown(value)}")
        try:
            return parse(value)
        except InputError as error:
            raise self.wrong(key, error.message) from None


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value).lower() if isinstance(value, bool) else repr(value)
