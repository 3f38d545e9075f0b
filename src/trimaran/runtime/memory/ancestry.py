"""What autograd says of how a tensor was made: the nodes behind it, and the plain numbers that they keep.

A node keeps those numbers that its backward needs: the factor of a product, the bounds of a clamp, the slope of a
leaky ReLU. What is added, or put where a mask says, it does not keep.
"""

import functools
from collections import deque
from typing import Any

import torch

_FARTHEST = 24
"""Most nodes that are looked at: a look costs about a microsecond."""

_VIEWS = (
    "Alias", "AsStrided", "Chunk", "Expand", "Narrow", "Permute", "ReshapeAlias", "Select", "Slice", "Split", "Squeeze",
    "TBackward", "Transpose", "Unbind", "Unflatten", "UnsafeView", "Unsqueeze", "View",
)  # fmt: skip
"""Beginnings of the names of nodes that only look at a storage in another way: they are no operations of a recipe."""

_NUMBERS = (bool, int, float, complex, str)
_SHAPES = ("sym_", "sizes", "strides", "numel", "options", "scalar_type", "layout")


def ancestry(tensor: torch.Tensor, operations: int) -> list[Any]:
    """The autograd nodes behind a tensor, the nearest first, until so many operations are among them.

    Example:
        >>> import torch
        >>> [node.name() for node in ancestry(torch.zeros(2, requires_grad=True).sin().exp(), 2)]
        ['ExpBackward0', 'SinBackward0']
    """
    found: list[Any] = []
    nodes: deque[Any] = deque([tensor.grad_fn])
    left = operations
    while nodes and left and len(found) < _FARTHEST:
        node = nodes.popleft()
        if node is None:
            continue
        found.append(node)
        left -= not node.name().startswith(_VIEWS)
        nodes.extend(following for following, _ in node.next_functions)
    return found


def numbers(node: Any) -> tuple[object, ...]:
    """Plain numbers that a node keeps. Hooks of saved tensors are not called.

    Example:
        >>> import torch
        >>> x = torch.zeros(2, requires_grad=True)
        >>> numbers(x.clamp(0.25, 0.5).grad_fn), numbers((x + 1).grad_fn)
        ((0.5, 0.25), (1,))
    """
    found: list[object] = []
    kind: Any = type(node)
    for name, raw in _kept(kind):
        value = _number_of(getattr(node, name, None)) if raw else getattr(node, name, None)
        if isinstance(value, _NUMBERS):
            found.append(value)
    return tuple(found)


def _number_of(saved: Any) -> object:
    """A factor is saved as a tensor without hooks if it is a plain number, and else as what the hooks packed."""
    data = getattr(saved, "data", None)
    if not isinstance(data, torch.Tensor) or data.dim() or data.device.type != "cpu" or data.requires_grad:
        return None
    return data.item()


@functools.cache
def _kept(kind: type) -> tuple[tuple[str, bool], ...]:
    """Names of what the nodes of a type keep that may be numbers, and whether it is saved as a tensor."""
    names = set(dir(kind))
    plain = [
        (name, False)
        for name in sorted(names)
        if name.startswith("_saved_") and f"_raw{name}" not in names and not any(part in name for part in _SHAPES)
    ]
    return (*plain, ("_raw_saved_other", True)) if "_raw_saved_other" in names else tuple(plain)
