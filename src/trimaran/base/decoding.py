"""The content of files as values: bounded before it is parsed, checked before it is used.

    content ──▶ bounds: size, nesting, number of values ──▶ parser ──▶ plain values ──▶ `from_plain` ──▶ a dataclass
                                                             └─ each key once, finite numbers, integers of 64 bits,
                                                                texts that can be written again

A file may come from anywhere, so whatever is wrong with one is a `TrimaranError` that names it, and none takes more
memory or time than its bounds allow. Files are opened by `trimaran.base.files`.
"""

import dataclasses
import json
import math
import re
import tomllib
import zlib
from itertools import accumulate
from typing import Annotated, Any, TypeVar

import msgspec

from trimaran.base.errors import CorruptDataError, InputError, TrimaranError

MOST_DEPTH = 100
"""Objects and lists inside of each other."""

MOST_VALUES = 4_000_000
"""Values of a file; an object or a list counts as `_OF_A_HOLDER`, as it takes more memory."""

LARGEST = 2**63
"""Integers of 64 bits are below it."""

_OF_A_HOLDER = 4

_AT_A_TIME = 2**20
_PACKED_AT_A_TIME = 2**14
_ALWAYS_UNPACKED = 2**24
_MOST_RATIO = 200
"""Of an unpacked content to the packed one, from `_ALWAYS_UNPACKED` bytes on: profiles have 10 to 30, zeros 1,000."""

Positive = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
"""A figure that a page can draw."""

Real = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""The same, of either sign."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A number of things, or of bytes."""

Value = TypeVar("Value")

# ---------------------------------------------------------------------------------------------------------------------
# Packed files


def is_packed(content: bytes) -> bool:
    """Whether a content is packed by gzip."""
    return content[:2] == b"\x1f\x8b"


def unpack(content: bytes, *, source: str, most_bytes: int) -> bytes:
    """A content that may be packed by gzip; unpacking ends as soon as there is too much.

    Args:
        content: of a file
        source: what to call it in errors
        most_bytes: that it may unpack to [bytes]

    Returns:
        What was packed, or the content where it is not packed.

    Raises:
        CorruptDataError: it is damaged or cut short
        InputError: it unpacks to more
    """
    if not is_packed(content):
        return content
    parts: list[bytes] = []
    size, at = 0, 0
    try:
        # A file may have several parts, one behind another, and zeros behind the last.
        while at < len(content) and content[at]:
            unpacker = zlib.decompressobj(wbits=31)
            while not unpacker.eof:
                packed = unpacker.unconsumed_tail or content[at : at + _PACKED_AT_A_TIME]
                at += 0 if unpacker.unconsumed_tail else len(packed)
                part = unpacker.decompress(packed, _AT_A_TIME)
                size += len(part)
                if size > min(most_bytes, max(_ALWAYS_UNPACKED, _MOST_RATIO * at)):
                    raise InputError(
                        f"{source} unpacks to over {size:,} bytes: give a smaller file",
                        code="file.unpacks-to-too-much",
                        source=source,
                        most_bytes=most_bytes,
                    )
                if not part and not packed:
                    raise zlib.error("it ends in the middle")
                parts.append(part)
            at -= len(unpacker.unused_data)
    except zlib.error as error:
        raise CorruptDataError(
            f"{source} is packed by gzip and damaged: {error}. Take another copy of it",
            code="file.damaged-gzip",
            source=source,
        ) from error
    return b"".join(parts)


# ---------------------------------------------------------------------------------------------------------------------
# JSON


_OPENS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))


def check_json_bounds(content: bytes, *, source: str, most_values: int = MOST_VALUES) -> None:
    """Refuse JSON that is nested too deep or has too many values, before anything parses it.

    Args:
        content: JSON, or what may be JSON
        source: what to call it in errors
        most_values: of objects, lists and all that is in them

    Raises:
        InputError: it is
    """
    opened = content.count(b"[") + content.count(b"{")
    values = _OF_A_HOLDER * opened + content.count(b",")
    if values > most_values:
        raise InputError(
            f"{source} has more values than the limit of {most_values:,}: give a smaller file",
            code="file.too-many-values",
            source=source,
            most_values=most_values,
        )
    if opened <= MOST_DEPTH:
        return
    # What is left are brackets, and quotes in pairs around those that are in texts.
    escaped = content.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in content else content
    brackets = escaped.translate(None, _NO_BRACKETS)
    depth, in_text = 0, 0
    for start in range(0, len(brackets), _AT_A_TIME):
        parts = brackets[start : start + _AT_A_TIME].split(b'"')
        depths = list(accumulate(map(_OPENS.__getitem__, b"".join(parts[in_text::2])), initial=depth))
        if max(depths) > MOST_DEPTH:
            raise _too_deep(source)
        depth, in_text = depths[-1], (in_text + len(parts) - 1) % 2


def _too_deep(source: str) -> InputError:
    return InputError(
        f"{source} nests objects or lists deeper than the limit of {MOST_DEPTH}: give a flatter file",
        code="file.too-deep",
        source=source,
        most_depth=MOST_DEPTH,
    )


_ADVICE = "take another copy of it, or write it anew"


def decode_json(
    content: bytes | str,
    *,
    source: str,
    finite: bool = True,
    nul: bool = False,
    most_values: int = MOST_VALUES,
    largest: int = LARGEST,
    advice: str = _ADVICE,
) -> Any:
    """Any JSON value.

    Args:
        content: JSON
        source: what to call it in errors
        finite: refuse NaN and Infinity, which are no JSON, though some programs write them; else they are read
        nul: a text may have a NUL character, as names that are no name of a file may
        most_values: of objects, lists and all that is in them
        largest: integers from its negative on are below it
        advice: what to do with a damaged file

    Returns:
        Objects, lists, texts, numbers.

    Raises:
        CorruptDataError: not JSON, as a truncated file is
        InputError: nested too deep, too many values, a key twice, a number that is not finite or too large
    """
    raw = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    check_json_bounds(raw, source=source, most_values=most_values)
    try:
        plain = json.loads(
            raw.decode("utf-8-sig"),
            parse_constant=_refuse_constant if finite else None,
            object_pairs_hook=_each_once,
        )
    except _KeyTwiceError as error:
        raise InputError(
            f'{source}: the key "{error.key}" is twice in one object: remove one of them',
            code="file.key-twice",
            source=source,
            key=error.key,
        ) from None
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(
            f"{source} is not JSON, it may have been truncated ({error}): {advice}", code="file.not-json", source=source
        ) from error
    check_plain(plain, source=source, finite=finite, nul=nul, largest=largest)
    return plain


def decode_object(
    content: bytes | str,
    *,
    source: str,
    finite: bool = True,
    nul: bool = False,
    most_values: int = MOST_VALUES,
    largest: int = LARGEST,
    advice: str = _ADVICE,
) -> dict[str, Any]:
    """One JSON object.

    Args:
        content: JSON
        source: what to call it in errors
        finite: as of `decode_json`
        nul: likewise
        most_values: likewise
        largest: likewise
        advice: what to do with a damaged file

    Returns:
        Its keys and values.

    Raises:
        CorruptDataError: not JSON, as a truncated file is
        InputError: JSON, but no object; or as `decode_json` refuses it
    """
    plain = decode_json(
        content, source=source, finite=finite, nul=nul, most_values=most_values, largest=largest, advice=advice
    )
    if not isinstance(plain, dict):
        raise InputError(
            f"{source} must be a JSON object, got {type(plain).__name__}", code="file.not-an-object", source=source
        )
    return plain


class _KeyTwiceError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        raise _KeyTwiceError(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def decode_typed(
    content: bytes,
    wanted: type[Value],
    *,
    source: str,
    most_values: int = MOST_VALUES,
    packed: bool = False,
    advice: str = _ADVICE,
) -> Value:
    """JSON, or MessagePack, as a value of a type; for files that are large, or that a digest guards.

    Args:
        content: of the file
        wanted: its type, for msgspec
        source: what to call it in errors
        most_values: of objects, lists and all that is in them
        packed: it is MessagePack
        advice: what to do with a damaged file

    Raises:
        CorruptDataError: it cannot be parsed, as a truncated file cannot
        InputError: it can, and has a wrong type or lacks something, with the path; or it exceeds the bounds
    """
    if not packed:
        check_json_bounds(content, source=source, most_values=most_values)
    decode = msgspec.msgpack.decode if packed else msgspec.json.decode
    try:
        return decode(content, type=wanted)
    except msgspec.ValidationError as error:
        raise InputError(f"{source}: {error}", code="file.unexpected-content", source=source) from error
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as error:
        raise CorruptDataError(
            f"{source} cannot be parsed, it may have been truncated ({error}): {advice}",
            code="file.malformed",
            source=source,
        ) from error
    except TrimaranError:
        raise
    except TypeError as error:
        # What the constructor of a dataclass says of its fields.
        raise InputError(f"{source}: {error}", code="file.refused-content", source=source) from error


# ---------------------------------------------------------------------------------------------------------------------
# TOML


MOST_TOML_BYTES = 4 * 2**20
"""Of a TOML file, which a parser in Python reads [bytes]."""

_LONG_KEY = re.compile(rf"""(?:[\w"'-]+[ \t]*\.[ \t]*){{{MOST_DEPTH}}}""")


def decode_toml(text: str, *, source: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Args:
        text: to read
        source: what to call it in errors

    Raises:
        InputError: not TOML, with line and column; too long, nested too deep, a number that is not finite or too large
    """
    if len(text) > MOST_TOML_BYTES:
        raise InputError(
            f"{source} has {len(text):,} characters, and a TOML file at most {MOST_TOML_BYTES:,}: give a shorter one",
            code="file.toml-too-long",
            source=source,
            most_bytes=MOST_TOML_BYTES,
        )
    # The time for a key grows with the square of its parts.
    if any(line.count(".") >= MOST_DEPTH and _LONG_KEY.search(line) for line in text.splitlines()):
        raise _too_deep(source)
    try:
        plain = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:
        raise InputError(f"{source}: not TOML: {error}", code="file.not-toml", source=source) from None
    check_plain(plain, source=source)
    return plain


# ---------------------------------------------------------------------------------------------------------------------
# Plain values: what every file may hold, and what a type holds of them


_Path = tuple[Any, Any]


def check_plain(plain: Any, *, source: str, finite: bool = True, nul: bool = False, largest: int = LARGEST) -> None:
    """Refuse values that no file of ours has and that later code could not work with.

    Args:
        plain: objects, lists, texts, numbers
        source: what to call it in errors
        finite: refuse numbers that are not finite
        nul: a text may have a NUL character
        largest: integers from its negative on are below it

    Raises:
        InputError: a number that is not finite, an integer that is too large, a text with a NUL or half a surrogate
            pair, or more nesting than `MOST_DEPTH`; the message has its path
    """
    left: list[tuple[Any, _Path, int]] = [([plain], ("", None), 0)]
    while left:
        holder, path, depth = left.pop()
        if depth > MOST_DEPTH + 1:
            raise _too_deep(source)
        is_object = isinstance(holder, dict)
        for key, value in holder.items() if is_object else enumerate(holder):
            if isinstance(value, dict | list):
                left.append((value, (path, key), depth + 1))
            else:
                wrong = _wrong(value, finite, nul, largest)
                if wrong:
                    raise _unusable((path, key), wrong, source)
            if is_object:
                wrong = _wrong(key, finite, nul, largest)
                if wrong:
                    raise _unusable((path, key), f"as a key {wrong}", source)


def _wrong(value: object, finite: bool, nul: bool, largest: int) -> str:
    """What is wrong with a single value; "" where nothing is."""
    if isinstance(value, str):
        return "" if value.isascii() and "\x00" not in value else _wrong_text(value, nul)
    if isinstance(value, float):
        return "" if not finite or math.isfinite(value) else f"a number that is not finite, {value}"
    if isinstance(value, int) and not -largest <= value < largest:
        return f"an integer beyond {largest.bit_length()} bits"
    return ""


def _wrong_text(text: str, nul: bool) -> str:
    if not nul and "\x00" in text:
        return "a text with a NUL character in it"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "a text with half of a surrogate pair in it"
    return ""


def _unusable(path: _Path, wrong: str, source: str) -> InputError:
    place = ""
    while path[0]:
        path, key = path
        # The outermost list is the one that `check_plain` makes around the whole.
        step = "$" if not path[0] else f"[{key}]" if isinstance(key, int) else f".{key}"
        place = step + place
    return InputError(f"{source}: {place} holds {wrong}: correct it", code="file.unusable-value", source=source)


def check_version(plain: dict[str, Any], *known: int, source: str) -> int:
    """Take the schema version off an object.

    Args:
        plain: the object; loses its key `schema_version`
        known: the versions that we read
        source: what to call it in errors

    Returns:
        The version.

    Raises:
        InputError: no version, or another one
    """
    version = plain.pop("schema_version", None)
    if not isinstance(version, int) or isinstance(version, bool) or version not in known:
        told = (
            f"{source} has no schema_version, so it is no file that Trimaran wrote"
            if version is None
            else f"{source}: schema_version is {version!r}, this version of Trimaran reads "
            f"{', '.join(map(str, known))}: write the file anew with it"
        )
        raise InputError(
            told,
            code="file.schema-version",
            source=source,
            schema_version=version,
        )
    return version


def from_plain(plain: object, wanted: type[Value], *, source: str) -> Value:
    """Plain values as a value of one of our types.

    Args:
        plain: what JSON or TOML gave
        wanted: a dataclass, or another type that msgspec knows
        source: what to call it in errors

    Returns:
        The value.

    Raises:
        InputError: a wrong type, a missing or unknown key, with the path, such as `$.strategy.dp`
    """
    try:
        value = msgspec.convert(plain, wanted, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{source}: {error}", code="file.wrong-value", source=source) from error
    _refuse_unknown(plain, value, path="$", source=source)
    return value


def _refuse_unknown(plain: object, value: object, *, path: str, source: str) -> None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and isinstance(plain, dict):
        known = [field.name for field in dataclasses.fields(value)]
        for key, item in plain.items():
            if key not in known:
                raise InputError(
                    f"{source}: unknown key `{path}.{key}`; known here: {', '.join(known)}",
                    code="file.unknown-key",
                    source=source,
                    key=key,
                )
            _refuse_unknown(item, getattr(value, key), path=f"{path}.{key}", source=source)
    elif isinstance(value, (tuple, list)) and isinstance(plain, list):
        for number, (item, made) in enumerate(zip(plain, value, strict=True)):
            _refuse_unknown(item, made, path=f"{path}[{number}]", source=source)
