"""What a loss function of the user's holds: modules and parameters, by the names under which it does."""

import inspect
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def modules_of(loss: Any) -> list[nn.Module]:
    """The modules that a loss is, or holds: as attributes of what it is bound to, arguments, or in its closure.

    Args:
        loss: of a job

    Example:
        >>> criterion = nn.CrossEntropyLoss()
        >>> modules_of(lambda output, target: criterion(output, target)) == [criterion]
        True
    """
    return list(dict.fromkeys(value for _, value in _held(loss) if isinstance(value, nn.Module)))


def _held(loss: Any) -> Iterator[tuple[str, Any]]:
    """What a function of the user's holds, by the name under which it does."""
    for layer in (loss, getattr(loss, "func", None), getattr(loss, "__wrapped__", None)):
        if layer is None:
            continue
        yield "", layer
        yield "", getattr(layer, "__self__", None)
        yield from _seen_by(layer)
        arguments = getattr(layer, "args", ())
        yield from (("", value) for value in (arguments if isinstance(arguments, tuple) else ()))
        yield from (getattr(layer, "keywords", None) or {}).items()
        if not isinstance(layer, nn.Module) and hasattr(type(layer), "__call__"):  # noqa: B004 - what it is bound to
            yield from (getattr(layer, "__dict__", None) or {}).items()


def _seen_by(function: Any) -> Iterator[tuple[str, Any]]:
    try:
        seen = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return
    yield from {**seen.nonlocals, **seen.globals}.items()


def parameter_names(loss: Any) -> dict[int, str]:
    """The names of the parameters and tensors that a loss holds, by id.

    Args:
        loss: of a job
    """
    found: dict[int, str] = {}
    for name, value in _held(loss):
        if isinstance(value, nn.Module):
            for path, one in value.named_parameters():
                found.setdefault(id(one), f"{name}.{path}" if name else path)
        elif isinstance(value, Tensor):
            found.setdefault(id(value), name)
    return found
