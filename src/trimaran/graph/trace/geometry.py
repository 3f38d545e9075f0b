"""How tensors lie in their storages: the view of a tensor, the tensor of a view, the bytes that a view covers."""

import functools
from collections.abc import Iterable

import torch

from trimaran.graph.trace.types import View


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a plain window on a storage: strided, and no conjugation or sign is still to be applied.

    Zeros without memory, as autograd makes them in forward mode, are none.
    """
    if tensor.layout is not torch.strided or tensor._is_zerotensor():
        return False
    return not tensor.is_conj() and not tensor.is_neg()


def view_of(tensor: torch.Tensor) -> View:
    """How a tensor looks at its storage."""
    return View(
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        offset=int(tensor.storage_offset()),
        dtype=dtype_name(tensor.dtype),
    )


def look(storage: torch.UntypedStorage, view: View) -> torch.Tensor:
    """A tensor that looks at a storage in a given way."""
    empty = torch.empty(0, dtype=dtype_of(view.dtype), device=storage.device)
    return empty.set_(storage, view.offset, view.shape, view.stride)


def extent(view: View) -> tuple[int, int]:
    """First byte that a view covers, and the one after the last [bytes].

    Example:
        >>> extent(View(shape=(2, 3), stride=(4, 1), offset=1, dtype="float32"))
        (4, 32)
    """
    itemsize = dtype_of(view.dtype).itemsize
    if 0 in view.shape:
        return view.offset * itemsize, view.offset * itemsize
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride, strict=True))
    return view.offset * itemsize, (last + 1) * itemsize


def covered_bytes(views: Iterable[View]) -> int:
    """Size of the smallest range of bytes that holds all views [bytes]."""
    ranges = [extent(view) for view in views]
    return max(stop for _, stop in ranges) - min(start for start, _ in ranges) if ranges else 0


def element_bytes(tensor: torch.Tensor) -> int:
    """Size of the elements of a tensor, where those that a dimension of stride 0 repeats count once [bytes]."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not size:
            count *= size
    return count * tensor.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """Torch's name of a dtype, without "torch."."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name, such as "float32"."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name!r} is no dtype of torch")
    return dtype
