"""Values of our types as JSON, and back: every field is checked, every error has its path.

The files of this package are the dataclasses themselves. Unknown keys are refused. `schema.py` publishes the schemas.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

from trimaran.base.errors import CorruptDataError, InputError
from trimaran.program.types import Program

PROGRAM_VERSION = 1

Value = TypeVar("Value")


def encode_program(program: Program) -> str:
    """The JSON form of a program.

    Args:
        program: the program

    Returns:
        One object, `schema_version` first, one instruction a line, without the fields that are at their defaults.
    """
    head = {"schema_version": PROGRAM_VERSION, "segments": program.segments, "microbatches": program.microbatches}
    if program.tp != 1:
        head["tp"] = program.tp
    ranks = []
    for instructions in program.ranks:
        lines = [json.dumps(to_plain(instruction, defaults=False)) for instruction in instructions]
        ranks.append("  [\n   " + ",\n   ".join(lines) + "\n  ]")
    return json.dumps(head)[:-1] + ',\n "ranks": [\n' + ",\n".join(ranks) + "\n ]}\n"


def decode_program(text: str, *, source: str = "program") -> Program:
    """Read the JSON form of a program.

    Args:
        text: JSON
        source: what to call it in errors, such as the path of the file

    Returns:
        The program; whether it is legal is for `check_program` to say.

    Raises:
        CorruptDataError: not JSON, as a truncated file is
        InputError: a wrong type, an unknown key, a schema version that we do not know
    """
    plain = decode_object(text, source=source)
    check_version(plain, PROGRAM_VERSION, source=source)
    return from_plain(plain, Program, source=source)


def decode_object(text: str, *, source: str) -> dict[str, Any]:
    """Read one JSON object.

    Args:
        text: JSON
        source: what to call it in errors

    Returns:
        Its keys and values.

    Raises:
        CorruptDataError: not JSON, as a truncated file is
        InputError: JSON, but no object
    """
    try:
        plain = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(
            f"{source} is not JSON, it may have been truncated: {error}", code="file.not-json", source=source
        ) from error
    if not isinstance(plain, dict):
        raise InputError(
            f"{source} must be a JSON object, got {type(plain).__name__}", code="file.not-an-object", source=source
        )
    return plain


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
    if version not in known or not isinstance(version, int) or isinstance(version, bool):
        raise InputError(
            f"{source}: schema_version is {version!r}, this version of Trimaran reads {', '.join(map(str, known))}",
            code="file.schema-version",
            source=source,
            schema_version=version,
        )
    return version


def to_plain(value: object, *, defaults: bool = True) -> Any:
    """A value of our types as JSON data.

    Args:
        value: a dataclass, or what its fields hold
        defaults: keep the fields that are at their defaults

    Returns:
        Objects, lists, strings, numbers.
    """
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name), defaults=defaults)
            for field in dataclasses.fields(value)
            if defaults or not _is_default(field, getattr(value, field.name))
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, defaults=defaults) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item, defaults=defaults) for item in value]
    if isinstance(value, frozenset):
        return sorted(to_plain(item, defaults=defaults) for item in value)
    return value


def finite(value: float) -> float | None:
    """A number as JSON has it: what is infinite or no number is null.

    Example:
        >>> finite(2.0), finite(float("inf"))
        (2.0, None)
    """
    return value if math.isfinite(value) else None


def from_plain(plain: object, wanted: type[Value], *, source: str) -> Value:
    """JSON data as a value of one of our types.

    Args:
        plain: what JSON gave
        wanted: a dataclass
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


def digest(plain: object) -> str:
    """Digest of JSON data, whatever the order of its keys and its white space."""
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _is_default(field: "dataclasses.Field[Any]", value: object) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    return field.default_factory is not dataclasses.MISSING and bool(value == field.default_factory())


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


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
