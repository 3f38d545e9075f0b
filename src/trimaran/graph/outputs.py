"""What a model returns, taken apart into tensors and put together again.

A segment hands tensors around; the loss and the metric of the job expect what the user's model returns: a tensor, a
tuple, a dict, an object of Hugging Face. The structure remembers the difference.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# A decoding cache holds keys and values of every layer. Training never reads it, and it would cross every cut.
CACHES = frozenset({"past_key_values"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStructure:
    """How to make a model's output from its tensors.

    Attributes:
        count: number of tensors
        build: makes the output from an iterator over the tensors
        dropped: names of the fields that are neither tensors nor plain values; they become None
    """

    count: int
    build: Callable[[Iterator[Tensor]], Any]
    dropped: tuple[str, ...] = ()

    def rebuild(self, tensors: Sequence[Tensor]) -> Any:
        """The output that holds these tensors."""
        return self.build(iter(tensors))


def take_apart(output: Any, *, keep: bool = False) -> tuple[tuple[Tensor, ...], OutputStructure]:
    """The tensors of a model's output, and the structure around them.

    Args:
        output: what a model returned
        keep: what is neither tensor nor plain value stays as it is here, rather than to become None

    Example:
        >>> import torch
        >>> tensors, structure = take_apart({"a": torch.zeros(2), "b": (torch.ones(2), None)})
        >>> len(tensors), structure.rebuild(["x", "y"])
        (2, {'a': 'x', 'b': ('y', None)})
    """
    tensors: list[Tensor] = []
    dropped: list[str] = []
    build = _take(output, "", tensors, dropped if not keep else None)
    return tuple(tensors), OutputStructure(count=len(tensors), build=build, dropped=tuple(dropped))


def _take(value: Any, name: str, tensors: list[Tensor], dropped: list[str] | None) -> Callable[[Iterator[Tensor]], Any]:
    if isinstance(value, Tensor):
        tensors.append(value)
        return next
    if value is None or isinstance(value, bool | int | float | str):
        return lambda _: value
    if isinstance(value, Mapping):
        return _take_fields(value, dict(value), name, tensors, dropped)
    if isinstance(value, tuple | list):
        parts = [_take(part, f"{name}[{index}]", tensors, dropped) for index, part in enumerate(value)]
        kind: Any = type(value)
        if hasattr(value, "_fields"):
            return lambda source: kind(*[part(source) for part in parts])
        return lambda source: kind([part(source) for part in parts])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _take_fields(value, fields, name, tensors, dropped)
    if dropped is None:
        return lambda _: value
    dropped.append(name.lstrip(".") or type(value).__name__)
    return lambda _: None


def _take_fields(
    value: Any, fields: dict[str, Any], name: str, tensors: list[Tensor], dropped: list[str] | None
) -> Callable[[Iterator[Tensor]], Any]:
    """A mapping or a dataclass; objects of Hugging Face are both, and are made from keywords."""
    parts: dict[str, Callable[[Iterator[Tensor]], Any]] = {}
    for key, part in fields.items():
        if key in CACHES and part is not None and dropped is not None:
            dropped.append(f"{name}.{key}".lstrip("."))
        else:
            parts[key] = _take(part, f"{name}.{key}", tensors, dropped)
    kind: Any = type(value)
    if kind is dict:
        return lambda source: {key: part(source) for key, part in parts.items()}
    return lambda source: kind(**{key: part(source) for key, part in parts.items()})
