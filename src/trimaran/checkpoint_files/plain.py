"""Values that are no tensors as plain JSON, and back, exactly: hyperparameters, states of schedules and generators.

    (0.9, 0.999)  ─▶  {"tuple": [0.9, 0.999]}  ─▶  (0.9, 0.999)

What JSON has no form for is an object with one key, which says what it is. What comes back is equal to what was given
and of the same type, or `encode` refuses it: nothing is pickled, and nothing is left out.
"""

import base64
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from trimaran.base.errors import CorruptDataError, InputError
from trimaran.base.precision import dtype_name

MOST_ELEMENTS = 8192
"""Of a tensor or an array among plain values; larger ones are none. The state of a generator of torch's has 5,056."""
_DEEPEST = 20


def encode(value: Any, what: str) -> Any:
    """The plain JSON of a value.

    Args:
        value: any of None, booleans, numbers, strings, bytes; lists, tuples, sets, dicts of them; small tensors and
            arrays
        what: it is, for the message

    Raises:
        InputError: it is, or holds, something else
    """
    return _encode(value, what, 0)


def _encode(value: Any, what: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if abs(value) < 2**63 else {"integer": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if depth < _DEEPEST:
        if kind is list:
            return _each(value, what, depth)
        if kind in _SEQUENCES:
            return {_SEQUENCES[kind]: _each(value, what, depth)}
        if kind in (set, frozenset):
            # In an order that does not depend on the process.
            return {kind.__name__: _each(sorted(value, key=repr), what, depth)}
        if kind is dict and _is_object(value):
            return {key: _encode(one, f'{what} "{key}"', depth + 1) for key, one in value.items()}
        if kind in _MAPPINGS:
            return {_MAPPINGS[kind]: [_each(pair, what, depth) for pair in value.items()]}
    scalar = _encode_scalar(value)
    if scalar is not None:
        return scalar
    raise InputError(
        f"{what} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold exactly: it holds None, "
        f"numbers, strings, bytes, lists, tuples, sets and dicts of them, and dense tensors of up to {MOST_ELEMENTS:,} "
        "elements. Give the object that has it a state_dict() and a load_state_dict() of such values, or train without "
        "saving",
        code="checkpoint.not-plain",
        what=what,
        type=kind.__qualname__,
    )


def _each(values: Any, what: str, depth: int) -> list[Any]:
    return [_encode(one, what, depth + 1) for one in values]


def _is_object(value: Mapping[Any, Any]) -> bool:
    """Whether a dict may be a JSON object as it is: it must not look like one that says what it is."""
    return all(type(key) is str for key in value) and not (len(value) == 1 and next(iter(value)) in _DECODERS)


def _encode_scalar(value: Any) -> Any:
    kind = type(value)
    if kind in (bytes, bytearray):
        return {kind.__name__: _text(bytes(value))}
    if kind is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, numpy.generic | numpy.ndarray) and value.dtype.kind in "biufc" and value.size <= MOST_ELEMENTS:
        name = "array" if isinstance(value, numpy.ndarray) else "number"
        return {name: [value.dtype.str, list(value.shape), _text(numpy.ascontiguousarray(value).tobytes())]}
    plain = kind is torch.Tensor and value.layout is torch.strided and not value.is_quantized
    if plain and not value.requires_grad and value.numel() <= MOST_ELEMENTS:
        flat = value.detach().cpu().contiguous().reshape(-1)
        return {"tensor": [dtype_name(value.dtype), list(value.shape), _text(flat.view(torch.uint8).numpy().tobytes())]}
    if kind is torch.dtype:
        return {"dtype": dtype_name(value)}
    if kind is torch.Size:
        return {"size": list(value)}
    return None


def decode(plain: Any, source: str) -> Any:
    """The value of plain JSON.

    Args:
        plain: from `encode`
        source: where it was read, for the message

    Raises:
        CorruptDataError: it is not what `encode` makes
    """
    if isinstance(plain, list):
        return [decode(one, source) for one in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1:
        ((name, inside),) = plain.items()
        if name in _DECODERS:
            try:
                return _DECODERS[name](inside, source)
            except CorruptDataError:
                raise
            except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
                raise CorruptDataError(
                    f"{source}: this is no {name}: {str(inside)[:80]!r} ({type(error).__name__}). It was damaged or "
                    "edited: take another checkpoint",
                    code="checkpoint.damaged-value",
                    source=source,
                ) from error
    return {key: decode(one, source) for key, one in plain.items()}


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def dtype_named(name: str, source: str) -> torch.dtype:
    """The dtype of a name, such as "float32".

    Args:
        name: without "torch."
        source: where it was read, for the message

    Raises:
        CorruptDataError: there is none
    """
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise CorruptDataError(f"{source}: torch has no dtype {name!r}", code="checkpoint.unknown-dtype", source=source)
    return found


def _tensor(inside: Any, source: str) -> torch.Tensor:
    name, shape, text = inside
    content = bytearray(_bytes(text))
    dtype = dtype_named(name, source)
    if not content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(shape)


def _array(inside: Any, source: str) -> Any:
    dtype, shape, text = inside
    found = numpy.frombuffer(_bytes(text), dtype=numpy.dtype(dtype)).reshape(shape).copy()
    if found.dtype.kind not in "biufc":
        raise ValueError(dtype)
    return found


def _items(inside: Any, source: str) -> dict[Any, Any]:
    return {decode(key, source): decode(one, source) for key, one in inside}


_SEQUENCES: dict[type, str] = {tuple: "tuple", deque: "deque"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_DECODERS: dict[str, Callable[[Any, str], Any]] = {
    "float": lambda inside, _: float(inside),
    "integer": lambda inside, _: int(inside),
    "tuple": lambda inside, source: tuple(decode(inside, source)),
    "deque": lambda inside, source: deque(decode(inside, source)),
    "set": lambda inside, source: set(decode(inside, source)),
    "frozenset": lambda inside, source: frozenset(decode(inside, source)),
    "dict": _items,
    "ordered": lambda inside, source: OrderedDict(_items(inside, source)),
    "counter": lambda inside, source: Counter(_items(inside, source)),
    "bytes": lambda inside, _: _bytes(inside),
    "bytearray": lambda inside, _: bytearray(_bytes(inside)),
    "complex": lambda inside, _: complex(float(inside[0]), float(inside[1])),
    "array": _array,
    "number": lambda inside, source: _array(inside, source)[()],
    "tensor": _tensor,
    "dtype": dtype_named,
    "size": lambda inside, _: torch.Size(inside),
}
