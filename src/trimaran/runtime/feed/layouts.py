"""What a sample is made of, so that many of them can lie in a few blocks of memory.

A sample is tuples, lists and dicts of leaves. A leaf that can be kept is a plain tensor of the host, an array or number
of numpy, or a number of Python; it comes back as what it was, with the same bits.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy
import torch

Kind = Literal["tensor", "array", "scalar", "int", "float", "bool"]

_NUMBERS: dict[type, tuple[Kind, torch.dtype]] = {
    bool: ("bool", torch.bool),
    int: ("int", torch.int64),
    float: ("float", torch.float64),
}


class Uncachable(Exception):
    """A sample that cannot be kept; its text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf of every sample.

    Attributes:
        kind: "tensor"; "array" and "scalar" of numpy; a number of Python
        dtype: in which it is kept
        shape: of the leaf
    """

    kind: Kind
    dtype: torch.dtype
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Of one sample's [bytes]."""
        return math.prod(self.shape) * self.dtype.itemsize

    def take(self, block: Any, number: int, *, copy: bool) -> Any:
        """One sample's from the block of all.

        Args:
            block: a tensor for tensors, else an array; [samples, *shape]
            number: of the sample
            copy: it does not share the memory of the block
        """
        if self.kind == "tensor":
            return block[number].clone() if copy else block[number]
        if self.kind == "array":
            return numpy.array(block[number], copy=True if copy else None)
        return block[number] if self.kind == "scalar" else block[number].item()

    def put(self, block: Any, number: int, value: Any) -> None:
        """Write one sample's into the block of all.

        Args:
            block: as for `take`
            number: of the sample
            value: of this leaf's kind, dtype and shape
        """
        if self.kind == "tensor":
            block[number].copy_(value)
        else:
            block[number] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What every sample is made of.

    Attributes:
        nesting: its containers, as nested tuples; numbers stand for leaves
        leaves: in the order of the nesting
    """

    nesting: Any
    leaves: tuple[Leaf, ...]


def layout_of(sample: Any) -> Layout:
    """What a sample is made of.

    Args:
        sample: as a data set gave it

    Raises:
        Uncachable: something in it cannot be kept

    Example:
        >>> [leaf.kind for leaf in layout_of((torch.zeros(3), 4)).leaves]
        ['tensor', 'int']
    """
    values: list[Any] = []
    nesting = _nest(sample, values)
    if not values:
        raise Uncachable("it is empty")
    return Layout(nesting=nesting, leaves=tuple(_leaf(value) for value in values))


def leaves_of(sample: Any) -> list[Any]:
    """The leaves of a sample, in the order of its nesting."""
    values: list[Any] = []
    _nest(sample, values)
    return values


def rebuild(nesting: Any, values: Sequence[Any]) -> Any:
    """A sample from its leaves.

    Args:
        nesting: of a layout
        values: leaves, in its order

    Example:
        >>> layout = layout_of({"a": 1, "b": (2, 3)})
        >>> rebuild(layout.nesting, [4, 5, 6])
        {'a': 4, 'b': (5, 6)}
    """
    if isinstance(nesting, int):
        return values[nesting]
    kind, keys, parts = nesting
    inner = [rebuild(part, values) for part in parts]
    if keys is not None:
        return kind(zip(keys, inner, strict=True))
    return kind(*inner) if hasattr(kind, "_fields") else kind(inner)


def _nest(value: Any, values: list[Any]) -> Any:
    kind = type(value)
    if kind in (dict, OrderedDict):
        return kind, tuple(value), tuple(_nest(part, values) for part in value.values())
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return kind, None, tuple(_nest(part, values) for part in value)
    values.append(value)
    return len(values) - 1


def _leaf(value: Any) -> Leaf:
    number = _NUMBERS.get(type(value))
    if number is not None:
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise Uncachable(f"it holds the number {value}, which takes more than 64 bits")
        return Leaf(kind=number[0], dtype=number[1])
    if type(value) is torch.Tensor:
        if value.layout != torch.strided or value.device.type != "cpu" or value.requires_grad or value.is_quantized:
            raise Uncachable(f"it holds a tensor that is {value.layout}, on {value.device}, or has a gradient")
        return Leaf(kind="tensor", dtype=value.dtype, shape=tuple(value.shape))
    if type(value) is numpy.ndarray or isinstance(value, numpy.generic):
        kind: Kind = "array" if type(value) is numpy.ndarray else "scalar"
        return Leaf(kind=kind, dtype=_torch_dtype(value.dtype), shape=tuple(value.shape))
    raise Uncachable(f"it holds a {type(value).__name__}; kept are tensors, arrays and numbers")


def _torch_dtype(dtype: Any) -> torch.dtype:
    try:
        found: torch.dtype = torch.from_numpy(numpy.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        raise Uncachable(f"it holds an array of {dtype}, which torch does not have") from None
    return found
