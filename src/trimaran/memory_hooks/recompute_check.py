"""Whether a recipe made the bytes that the forward had.

A sum over bytes is taken when a storage is released, and compared with that over what the recipe makes.

A recipe repeats what was recorded. A temperature, a slope or a crop that the model has changed since shows in no shape.
The sum goes over all of a small storage, and over some thousand places of a large one: at random, but spread over all
of it, and the same each time. Only places under a packed tensor count, as nobody wrote what is in between. Each place
has its odd weight, so that a change of one value shows, and values that change places.

On a CPU a difference is known at once. A GPU is not waited for: differences are collected there, copied to the host
behind the operations, and read when somebody asks.

Verified recipes are compared with the bytes of the real storage, bit for bit. The real bytes are in a slot on the host,
and the comparison goes over them in chunks, so that it needs little memory of the device. What lies between the packed
views may differ: nobody wrote it. Where a chunk differs, which of its bytes do is noted on the host, and looked at
through the views there.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from trimaran.graph.trace.storages import covered_bytes, dtype_of, extent
from trimaran.graph.trace.types import View
from trimaran.memory_hooks.arena import Slot
from trimaran.memory_hooks.coding import bytes_at

WHOLE_BYTES = 64 << 10
"""A storage with at most this under its views is checked whole [bytes]."""

SAMPLES = 2048
"""Places that are looked at in a larger one."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SEED = 20240229

Views = tuple[View, ...]
Sum = torch.Tensor | int


class Fingerprints:
    """Sums over storages of one device, and what was found to differ.

    Args:
        device: where the storages are
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._found: torch.Tensor | None = None
        self._on_host: torch.Tensor | None = None
        self._compared: torch.cuda.Event | None = None
        self._slots: dict[int, int] = {}

    def take(self, storage: torch.UntypedStorage, views: Views) -> Sum:
        """The sum over a storage: a number on a CPU, a tensor with one on a GPU.

        Args:
            storage: on the device
            views: how packed tensors look at it

        Example:
            >>> x = torch.arange(6.0)
            >>> view = View(shape=(6,), stride=(1,), offset=0, dtype="float32")
            >>> prints = Fingerprints(x.device)
            >>> before = prints.take(x.untyped_storage(), (view,))
            >>> prints.take(x.untyped_storage(), (view,)) == before
            True
            >>> prints.take(x.roll(1).untyped_storage(), (view,)) == before
            False
        """
        if self._device.type == "cpu":
            return _sum_on_host(storage, views)
        if _get_current_dispatch_mode() is None:
            return self._sum(storage, views)
        with _disable_current_modes():  # what this takes is none of what a mode follows
            return self._sum(storage, views)

    def differs(self, number: int, made: torch.UntypedStorage, views: Views, before: Sum) -> bool:
        """Whether a recomputed storage is known to have another sum; on a GPU this is looked at later.

        Args:
            number: of the storage
            made: by the recipe
            views: how packed tensors look at it
            before: the sum over the storage that was released
        """
        if any(extent(view)[1] > made.nbytes() for view in views):
            return True
        now = self.take(made, views)
        if isinstance(now, int) or isinstance(before, int):
            return bool(now != before)
        with _disable_current_modes():
            self._collect(number, now != before)
        return False

    def collected(self) -> list[int]:
        """Numbers of the storages that were found to differ on a GPU since the last call. Waits for the last look."""
        if self._compared is None or self._on_host is None or self._found is None:
            return []
        self._compared.synchronize()
        self._compared = None
        found = [number for number, slot in self._slots.items() if self._on_host[slot]]
        if found:
            self._found.zero_()
        return found

    def _sum(self, storage: torch.UntypedStorage, views: Views) -> torch.Tensor:
        size, places, weights = _places(views, self._device)
        whole = torch.empty(0, dtype=_INTEGERS[size], device=self._device)
        whole.set_(storage, 0, (storage.nbytes() // size,), (1,))
        return whole.index_select(0, places).mul(weights).sum()

    def _collect(self, number: int, different: torch.Tensor) -> None:
        slot = self._slots.setdefault(number, len(self._slots))
        if self._found is None or self._on_host is None or slot >= len(self._found):
            found = torch.zeros(2 * slot + 64, dtype=torch.bool, device=self._device)
            if self._found is not None:
                found[: len(self._found)] = self._found
            self._found = found
            self._on_host = torch.zeros(len(found), dtype=torch.bool, device="cpu", pin_memory=True)
        self._found[slot].logical_or_(different)
        self._on_host.copy_(self._found, non_blocking=True)
        self._compared = self._compared or torch.cuda.Event()
        self._compared.record()


def _sum_on_host(storage: torch.UntypedStorage, views: Views) -> int:
    """The same without torch, whose calls would cost more than the sum, and which modes follow."""
    size, places, weights = _host_places(views)
    whole = bytes_at(storage.data_ptr(), storage.nbytes() // size * size).view(f"i{size}")
    return int(np.dot(whole[places].astype(np.int64, copy=False), weights))


@functools.lru_cache(maxsize=512)
def _host_places(views: Views) -> tuple[int, NDArray[np.int64] | slice, NDArray[np.int64]]:
    """Places and weights on a CPU; those that lie side by side are read eight bytes at a time."""
    with _disable_current_modes():
        size, tensor, weighing = _places(views, torch.device("cpu"))
        places, weights = tensor.numpy(), weighing.numpy()
    if not len(places) or int(places[-1] - places[0]) + 1 != len(places):
        return size, places, weights
    first, last = int(places[0]) * size, (int(places[-1]) + 1) * size
    if first % 8 or last % 8:
        return size, slice(first // size, last // size), weights
    return 8, slice(first // 8, last // 8), weights[: (last - first) // 8]


@functools.lru_cache(maxsize=512)
def _places(views: Views, device: torch.device) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Size of the integers as which a storage is read [bytes], at which of them to look, and their weights."""
    random = torch.Generator(device="cpu")
    random.manual_seed(_SEED)
    size = min(8, *(dtype_of(view.dtype).itemsize for view in views), 8)
    whole = covered_bytes(views) <= WHOLE_BYTES
    found = [_places_of(view, size, None if whole else -(-SAMPLES // len(views)), random) for view in views]
    places = torch.cat(found).unique()
    weights = torch.randint(1 << 62, places.shape, generator=random, device="cpu").mul(2).add(1)
    return size, places.to(device), weights.to(device)


def _places_of(view: View, size: int, most: int | None, random: torch.Generator) -> torch.Tensor:
    """Places of a view's elements, at most `most` of them."""
    count = math.prod(view.shape)
    if most is None or count <= most:
        chosen = torch.arange(count, device="cpu")
    else:
        step = count / most
        jitter = torch.rand(most, generator=random, dtype=torch.float64, device="cpu")
        chosen = ((torch.arange(most, dtype=torch.float64, device="cpu") + jitter) * step).long().clamp_(max=count - 1)
    place = torch.full_like(chosen, view.offset)
    for extent_of, stride in zip(reversed(view.shape), reversed(view.stride), strict=True):
        place += chosen % extent_of * stride
        chosen = chosen // extent_of
    parts = dtype_of(view.dtype).itemsize // size
    return (place[:, None] * parts + torch.arange(parts, device="cpu")).flatten()


def describe(names: Sequence[str]) -> str:
    """The error message where a model has changed under its plan."""
    return (
        f"{', '.join(names)}: recomputed, it had other bytes than in the forward: a number or a tensor that the model "
        "uses has changed since the step was recorded, or within it, as a temperature, a slope, a bias, an average. "
        "Gradients would have been wrong, so the step was stopped. Use virtual_memory(..., recompute=False), which "
        "moves bytes and recomputes nothing"
    )


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
