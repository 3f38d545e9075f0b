"""What a batch looks like to a plan: the shapes that go into the outermost module, and how it is called.

A plan is for one such look. Two batches of the same look run the same operations, unless the model branches on values;
that is noticed tick by tick, when the step runs. Numbers among the arguments are left out, because a counter of steps
would make every batch look new.
"""

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Signature = tuple[Any, ...]
"""Hashable look of a batch: nested tuples of shapes, dtypes, flags."""

WITHOUT_MODULE = "without module"
_DEPTH = 6

_serials: dict[int, tuple["weakref.ref[torch.Tensor]", int]] = {}
_count = itertools.count(1)


def look_at(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
    """The look of a call of an outermost module.

    Args:
        module: that is called
        args: positional arguments
        kwargs: arguments by name
    """
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    which = _which(module)
    return (kind, module.training, _autocast(), _look(tuple(args), _DEPTH), _look(dict(kwargs), _DEPTH), which)


def look_at_tensor(tensor: torch.Tensor) -> Signature:
    """The look of a step of which no module is known: the first tensor that autograd packs."""
    return (WITHOUT_MODULE, True, _autocast(), _look(tensor, 1), ())


def is_within(small: Any, large: Any) -> bool:
    """Whether a batch looks like another one, with no dimension larger: then it needs no more memory.

    Example:
        >>> is_within((("T", "float32", (3, 8)),), (("T", "float32", (4, 8)),))
        True
        >>> is_within((("T", "float32", (5, 8)),), (("T", "float32", (4, 8)),))
        False
    """
    if isinstance(small, tuple) and isinstance(large, tuple):
        if len(small) != len(large):
            return False
        if len(small) == 3 and small[0] == "T" == large[0]:
            return (
                small[1] == large[1]
                and len(small[2]) == len(large[2])
                and all(one <= other for one, other in zip(small[2], large[2], strict=True))
            )
        return all(is_within(one, other) for one, other in zip(small, large, strict=True))
    return bool(small == large)


def _which(module: torch.nn.Module) -> tuple[int, int]:
    """Which model it is, by its first parameter, and which of its parameters are trained.

    Not by the module itself: a loop may put the same parts into a new module at each step.
    """
    parameters = list(module.parameters())
    if not parameters:
        return 0, 0
    return _serial_of(parameters[0]), hash(tuple(parameter.requires_grad for parameter in parameters))


def _serial_of(parameter: torch.Tensor) -> int:
    """A number of a parameter that no later one gets, as it may get the same address."""
    known = _serials.get(id(parameter))
    if known is not None and known[0]() is parameter:
        return known[1]
    key, serial = id(parameter), next(_count)
    _serials[key] = weakref.ref(parameter, lambda _: _forget(key, serial)), serial
    return serial


def _forget(key: int, serial: int) -> None:
    if key in _serials and _serials[key][1] == serial:
        del _serials[key]


def _autocast() -> tuple[str, ...]:
    return tuple(
        f"{kind}:{torch.get_autocast_dtype(kind)}" for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    )


def _look(value: Any, depth: int) -> Signature | str | bool | None:
    if isinstance(value, torch.Tensor):
        return ("T", str(value.dtype), tuple(value.shape))
    if value is None or isinstance(value, bool | str):
        return value
    if depth and isinstance(value, Mapping):
        return tuple((str(name), _look(part, depth - 1)) for name, part in value.items())
    if depth and isinstance(value, list | tuple):
        return tuple(_look(part, depth - 1) for part in value)
    return type(value).__qualname__
