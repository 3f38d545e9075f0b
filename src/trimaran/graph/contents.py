"""What an operation computes, as a digest: operations with equal digests cost the same at the same batch size.

The digest holds the kind of operation, its constants, the shapes (as expressions in the batch) and dtypes of what it
reads and of its parameters, and which of them want a gradient. It holds no names, addresses or devices, so that the
twelve equal blocks of a transformer share their measurements, on every machine and in every process.
"""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimaran.graph.shapes import describe_number, describe_shape
from trimaran.graph.walk import Walk


def content_text(node: fx.Node, target: Any, walks: tuple[Walk, Walk], batches: tuple[int, int], precision: str) -> str:
    """What an operation computes, as text in a fixed order."""

    def describe(source: fx.Node) -> Any:
        first, second = (walk.values[source] for walk in walks)
        if isinstance(first, Tensor):
            shape = describe_shape(first.shape, second.shape, batches)
            return f"{_dtype(first)}{list(shape)}{'+' if first.requires_grad else ''}"
        if isinstance(first, fx.GraphModule):
            return [str(part.target) for part in first.graph.nodes]
        return describe_number(first, second, batches)

    arguments = fx.map_arg((node.args, node.kwargs), describe)
    parts: dict[str, Any] = {"arguments": _plain(arguments), "precision": precision}
    if isinstance(target, nn.Module):
        parts["module"] = f"{type(target).__module__}.{type(target).__qualname__}"
        parts["state"] = [
            f"{name}:{_dtype(tensor)}{list(tensor.shape)}{'+' if tensor.requires_grad else ''}"
            for name, tensor in [*target.named_parameters(), *target.named_buffers()]
        ]
        if type(target).__module__.startswith("torch.nn."):
            parts["attributes"] = _attributes(target)
        else:
            parts["interior"] = list(node.meta["interior"])
    else:
        parts["function"] = str(target)
    return json.dumps(parts, sort_keys=True)


def digest(text: str) -> str:
    """A short digest of a text.

    Example:
        >>> digest("a") == digest("a"), len(digest("a"))
        (True, 16)
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _attributes(module: nn.Module) -> dict[str, str]:
    plain = {
        name: repr(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training" and _is_plain(value)
    }
    return {**plain, "text": module.extra_repr()}


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    """Arguments without what differs between machines; dtypes and the like by their text."""
    if isinstance(value, torch.device):
        return "device"
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return value if isinstance(value, str | int | bool) or value is None else str(value)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
