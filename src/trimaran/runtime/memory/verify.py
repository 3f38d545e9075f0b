"""Compares what a recipe made with the bytes of the real storage, bit for bit.

The real bytes are in a slot on the host, and the comparison goes over them in chunks, so that it needs little memory of
the device. What lies between the packed views may differ: nobody wrote it.
"""

from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from trimaran.graph.trace.geometry import dtype_of
from trimaran.graph.trace.types import View
from trimaran.runtime.memory.arena import Slot

CHUNK_BYTES = 4 << 20
_UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def differs(
    made: torch.UntypedStorage, slot: Slot, start: int, views: Sequence[View], *, chunk_bytes: int = CHUNK_BYTES
) -> bool:
    """Whether a storage has other bits than what was saved.

    Args:
        made: by the recipe, on the device
        slot: the real bytes, on the host
        start: byte of the storage with which the slot begins [bytes]
        views: how packed tensors look at the storage
        chunk_bytes: most that is compared at a time [bytes]
    """
    if made.nbytes() < start + slot.nbytes:
        return True
    with _disable_current_modes():  # the host's memory is none of what a mode follows on the device
        return _differ(made, slot, start, views, chunk_bytes)


def _differ(made: torch.UntypedStorage, slot: Slot, start: int, views: Sequence[View], chunk_bytes: int) -> bool:
    real = slot.tensor()
    ours = torch.empty(0, dtype=torch.uint8, device=made.device).set_(made, start, (slot.nbytes,), (1,))
    for first in range(0, slot.nbytes, chunk_bytes):
        one, other = ours[first : first + chunk_bytes], real[first : first + chunk_bytes]
        if not torch.equal(one, other.to(made.device)):
            return _views_differ(ours, real, start, views)
    return False


def _views_differ(ours: torch.Tensor, real: torch.Tensor, start: int, views: Sequence[View]) -> bool:
    """The same question for the elements of the views alone."""
    real = real.to(ours.device)
    return any(not torch.equal(_bits(ours, start, view), _bits(real, start, view)) for view in views)


def _bits(raw: torch.Tensor, start: int, view: View) -> torch.Tensor:
    """The elements of a view as integers, so that one NaN equals another of the same bits."""
    dtype = dtype_of(view.dtype)
    size = dtype.itemsize
    first = view.offset * size - start
    whole = raw[first : first + (raw.numel() - first) // size * size]
    if first % size:
        whole = whole.clone()
    if size == 16:
        pairs = whole.view(torch.int64)
        return pairs.as_strided((*view.shape, 2), (*(2 * stride for stride in view.stride), 1))
    return whole.view(_UNSIGNED[size]).as_strided(view.shape, view.stride)
