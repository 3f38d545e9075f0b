"""Several tensors as one flat one of each dtype; and collectives on flat tensors, under the names that this torch has.

torch 2.13 gave them other names, and warns of the old ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

Packed = Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]]
"""Flat tensors, each with those that it was made of."""

all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""Gather equal parts into one tensor: `(whole, part, group, async_op)`."""

reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""Sum tensors and keep equal parts of the sum: `(part, whole, op, group, async_op)`."""


def pack(tensors: Sequence[torch.Tensor]) -> Packed:
    """One flat tensor of those of each dtype; a tensor that is alone is not copied."""
    found = []
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        alone = len(alike) == 1 and alike[0].is_contiguous()
        flat = alike[0].view(-1) if alone else torch.cat([tensor.reshape(-1) for tensor in alike])
        found.append((flat, alike))
    return found


def unpack(packed: Packed) -> None:
    """Copy what flat tensors hold into those that they were made of."""
    for flat, alike in packed:
        parts = flat.split([tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            if part.data_ptr() != tensor.data_ptr():
                tensor.copy_(part.view_as(tensor))
