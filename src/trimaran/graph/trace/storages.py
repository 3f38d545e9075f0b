"""Which storage is which, and how long each is there.

The identity of a storage is the live storage itself, never its address in memory: an address is used again as soon as
its storage has gone. Each storage that is met gets a number; a weak reference tells when it goes, to the event.

A **stand-in** is a storage that holds again what another one held. It has that one's number, and another life.
"""

import functools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from trimaran.base.precision import dtype_name
from trimaran.graph.trace.types import Role, View

PERSISTENT = frozenset({Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER})
"""Roles of storages that are there before and after the step, so that dropping them would save nothing."""


@dataclass(slots=True)
class StorageRecord:
    """What is known so far of a storage.

    Attributes:
        nbytes: largest size seen [bytes]
        device: where it is
        role: what it is to the step, as far as known
        birth: moment of the operation that made it; -1: it was there before
        module: that made it
        unseen: whether it was met with no operation that made it, at a place where it was not there before the step
        end: first moment at which it is no more there; None: it still is
        version: how often operations have changed it
        packed_at: versions at which it was packed
        changed: whether it changed after it was packed
        elsewhere: whether it counts as memory of the host, wherever it is
        reference: to the storage
    """

    nbytes: int
    device: torch.device
    role: Role
    birth: int
    module: str
    unseen: bool
    reference: "weakref.ref[torch.UntypedStorage]"
    end: int | None = None
    version: int = 0
    packed_at: set[int] = field(default_factory=set)
    changed: bool = False
    elsewhere: bool = False


class StorageBook:
    """Numbers storages in the order in which they are met, and notes when each goes.

    Args:
        now: gives the moment at which what goes now is no more there

    Attributes:
        elsewhere: tells which storages count as memory of the host: on a CPU both are the same memory
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.elsewhere: Callable[[torch.UntypedStorage], bool] | None = None
        self.records: list[StorageRecord] = []
        self.names: dict[int, str] = {}
        self._now = now
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def find(self, storage: torch.UntypedStorage) -> int | None:
        """Number of a storage, also of a stand-in; None if it was not met yet."""
        return self._numbers.get(storage._cdata)

    def add(self, storage: torch.UntypedStorage, role: Role, birth: int, module: str = "", unseen: bool = False) -> int:
        """Give a new storage a number; see `StorageRecord`."""
        number = len(self.records)

        def gone() -> None:
            self.records[number].end = self._now()

        reference = self._watch(storage, number, gone)
        self.records.append(
            StorageRecord(
                nbytes=storage.nbytes(),
                device=storage.device,
                role=role,
                birth=birth,
                module=module,
                unseen=unseen,
                reference=reference,
                elsewhere=self.elsewhere is not None and self.elsewhere(storage),
            )
        )
        return number

    def stand_in(self, storage: torch.UntypedStorage, number: int, gone: Callable[[], None]) -> None:
        """Say that a new storage holds what the storage of that number held, and what to do when it goes."""
        self._watch(storage, number, gone)

    def close(self) -> None:
        """Let go of every reference."""
        self._numbers.clear()
        self._references.clear()

    def _watch(
        self, storage: torch.UntypedStorage, number: int, gone: Callable[[], None]
    ) -> "weakref.ref[torch.UntypedStorage]":
        key = storage._cdata

        def forget(_: object) -> None:
            self._numbers.pop(key, None)
            self._references.pop(key, None)
            gone()

        reference = weakref.ref(storage, forget)
        self._numbers[key] = number
        self._references[key] = reference
        return reference


# ---------------------------------------------------------------------------------------------------------------------
# How tensors lie in their storages: the view of a tensor, the tensor of a view, the bytes that a view covers


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


@functools.cache
def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name, such as "float32"."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name!r} is no dtype of torch")
    return dtype
