"""Values of our types as JSON, and back: every field is checked, every error has its path.

The files of this package are the dataclasses themselves. Unknown keys are refused. `schema.py` publishes the schemas.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from trimaran.base.decoding import check_version, decode_object, from_plain
from trimaran.program.types import Program

PROGRAM_VERSION = 1


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
    plain = decode_object(text, source=source, nul=True)
    check_version(plain, PROGRAM_VERSION, source=source)
    return from_plain(plain, Program, source=source)


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


def digest(plain: object) -> str:
    """Digest of JSON data, whatever the order of its keys and its white space."""
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _is_default(field: "dataclasses.Field[Any]", value: object) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    return field.default_factory is not dataclasses.MISSING and bool(value == field.default_factory())
