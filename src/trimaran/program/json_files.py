"""Values of our types as JSON; `base/decoding.py` reads them back. The files of this package are the dataclasses."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any


def to_plain(value: object, *, defaults: bool = True) -> Any:
    """A value of our types as JSON data: the fields of a dataclass, and the properties that its `derived` names.

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
        } | {name: to_plain(getattr(value, name), defaults=defaults) for name in getattr(value, "derived", ())}
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
