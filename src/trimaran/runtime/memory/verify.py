"""Compares what a recipe made with the bytes of the real storage, bit for bit.

The real bytes are in a slot on the host, and the comparison goes over them in chunks, so that it needs little memory of
the device. What lies between the packed views may differ: nobody wrote it. Where a chunk differs, which of its bytes do
is noted on the host, and looked at through the views there.
"""

from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from trimaran.graph.trace.geometry import dtype_of
from trimaran.graph.trace.types import View
from trimaran.runtime.memory.arena import Slot

CHUNK_BYTES = 4 << 20


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
    others: torch.Tensor | None = None
    for first in range(0, slot.nbytes, chunk_bytes):
        chunk = slice(first, first + chunk_bytes)
        one, other = ours[chunk], real[chunk].to(made.device)
        if not torch.equal(one, other):
            others = torch.zeros(slot.nbytes, dtype=torch.bool) if others is None else others
            others[chunk] = (one != other).to("cpu")
    return others is not None and any(_any_within(others, start, view) for view in views)


def _any_within(others: torch.Tensor, start: int, view: View) -> bool:
    """Whether any byte of a view is among those that differ."""
    size = dtype_of(view.dtype).itemsize
    shape, stride = (*view.shape, size), (*(step * size for step in view.stride), 1)
    return bool(others.as_strided(shape, stride, view.offset * size - start).any())
