"""Host memory for offloaded storages: one mapping of an exact size, split into slots.

The mapping has the size that was asked for, is page-locked once for a GPU, and goes back to the system when it is
closed. Page-locked memory is left out when the process forks, as data loaders do: a copy on write would take the pages
away from the GPU. Slots are taken best-fit and start at multiples of 64 bytes, large ones of a page. A slot that does
not fit gets a separate mapping, which is not page-locked and therefore slow to copy: it is counted, so that users see
it.
"""

import bisect
import contextlib
import ctypes
import mmap
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from trimaran.base.errors import EnvironmentProblem, InputError
from trimaran.graph.trace.types import View
from trimaran.memory_hooks.coding import Coding

LINE_BYTES = 64
PAGE_BYTES = 4096
_LARGE_BYTES = 1 << 20

PageLock = Callable[[int, int], Callable[[], None] | None]
"""Page-locks `(address, nbytes)` and returns what undoes it; None: the system refuses, and it stays pageable."""

_elsewhere: list[mmap.mmap] = []
"""Mappings of the process that this one was forked from. They are not here; something else may be in their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaUse:
    """Use of an arena.

    Attributes:
        cap_bytes: size of the mapping [bytes]
        used_bytes: in slots now [bytes]
        peak_bytes: in slots at most so far [bytes]
        pageable_bytes: outside the mapping now, for want of room [bytes]
        pageable_peak_bytes: outside the mapping at most so far [bytes]
    """

    cap_bytes: int
    used_bytes: int
    peak_bytes: int
    pageable_bytes: int
    pageable_peak_bytes: int


class Slot:
    """A piece of host memory. Giving it back twice is allowed.

    Attributes:
        nbytes: size [bytes]
        address: of its first byte
        offset: in the arena [bytes]; None: outside it
        views: how packed tensors look at what is put here; None: it must lie here as it is
        codec: by which a plan wants it to be coded; "": by none
        coding: how it is coded; None: it is not
    """

    __slots__ = ("__weakref__", "_arena", "_memory", "address", "codec", "coding", "nbytes", "offset", "views")

    def __init__(self, arena: "HostArena", memory: mmap.mmap, address: int, nbytes: int, offset: int | None) -> None:
        self._arena: HostArena | None = arena
        self._memory: mmap.mmap | None = memory
        self.address = address
        self.nbytes = nbytes
        self.offset = offset
        self.views: tuple[View, ...] | None = None
        self.codec = ""
        self.coding: Coding | None = None

    def tensor(self) -> torch.Tensor:
        """The bytes, as a tensor that shares them: uint8 of shape [nbytes]."""
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=self.nbytes, offset=self.offset or 0)

    def free(self) -> None:
        """Give the memory back. No copy from or to it may be under way."""
        arena, self._arena, self._memory = self._arena, None, None
        if arena is not None:
            arena._take_back(self)


class HostArena:
    """The mapping and its slots. Threads may share it.

    Args:
        cap_bytes: size of the mapping [bytes]; it is mapped at once and used as it is touched
        lock: page-locks it; None: it stays pageable

    Raises:
        InputError: a negative size
        EnvironmentProblem: the system refuses a mapping of this size

    Example:
        >>> with HostArena(1 << 20) as arena:
        ...     slot = arena.allocate(100)
        ...     arena.use().used_bytes
        128
    """

    def __init__(self, cap_bytes: int, *, lock: PageLock | None = None) -> None:
        if cap_bytes < 0:
            raise InputError(
                f"An arena cannot have {cap_bytes} bytes.", code="arena.negative-size", cap_bytes=cap_bytes
            )
        self._cap = cap_bytes
        self._guard = threading.RLock()
        self._holes: list[tuple[int, int]] = [(0, cap_bytes)] if cap_bytes else []
        self._used = self._peak = self._paged = self._paged_peak = 0
        self._memory: mmap.mmap | None = _map(cap_bytes) if cap_bytes else None
        self._address = _address(self._memory) if self._memory is not None else 0
        unlock = None
        if lock is not None and self._memory is not None:
            _advise(self._memory)
            unlock = lock(self._address, cap_bytes)
        # Also when nobody closes it: what is page-locked must not be unmapped before it is unlocked.
        self._end = weakref.finalize(self, _end, self._memory, unlock, os.getpid() if lock is not None else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def allocate(self, nbytes: int) -> Slot:
        """A piece of at least one byte; from outside the mapping where no hole is large enough.

        Raises:
            EnvironmentProblem: the system has no memory outside it either
        """
        size = _rounded(nbytes)
        with self._guard:
            place = self._best(size, PAGE_BYTES if size >= _LARGE_BYTES else LINE_BYTES)
            if place is not None and self._memory is not None:
                self._used += size
                self._peak = max(self._peak, self._used)
                return Slot(self, self._memory, self._address + place, nbytes, place)
            self._paged += size
            self._paged_peak = max(self._paged_peak, self._paged)
        memory = _map(size)
        return Slot(self, memory, _address(memory), nbytes, None)

    def use(self) -> ArenaUse:
        """Its present use."""
        with self._guard:
            return ArenaUse(
                cap_bytes=self._cap,
                used_bytes=self._used,
                peak_bytes=self._peak,
                pageable_bytes=self._paged,
                pageable_peak_bytes=self._paged_peak,
            )

    def start_peak(self) -> None:
        """Forget the peaks so far."""
        with self._guard:
            self._peak, self._paged_peak = self._used, self._paged

    def close(self) -> None:
        """Return the memory to the system, once no slot or tensor looks at it any more. Closing twice is allowed."""
        with self._guard:
            self._holes = []
            self._memory = None
        self._end()

    def _best(self, size: int, alignment: int) -> int | None:
        """Where the piece starts in the smallest hole that has room; the hole is split."""
        best: tuple[int, int, int] | None = None
        for index, (start, length) in enumerate(self._holes):
            waste = -start % alignment
            if length >= size + waste and (best is None or length < best[0]):
                best = length, index, start + waste
        if best is None:
            return None
        length, index, place = best
        start = self._holes[index][0]
        rest = [(start, place - start), (place + size, start + length - place - size)]
        self._holes[index : index + 1] = [hole for hole in rest if hole[1]]
        return place

    def _take_back(self, slot: Slot) -> None:
        size = _rounded(slot.nbytes)
        with self._guard:
            if slot.offset is None:
                self._paged -= size
                return
            self._used -= size
            if self._memory is not None:
                self._join(slot.offset, size)

    def _join(self, start: int, size: int) -> None:
        """A new hole, one with those that it touches."""
        index = bisect.bisect(self._holes, (start, size))
        if index < len(self._holes) and self._holes[index][0] == start + size:
            size += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == start:
            index -= 1
            start, before = self._holes.pop(index)
            size += before
        self._holes.insert(index, (start, size))


def _rounded(nbytes: int) -> int:
    unit = PAGE_BYTES if nbytes >= _LARGE_BYTES else LINE_BYTES
    return max(-(-nbytes // unit) * unit, LINE_BYTES)


def _map(nbytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        message = (
            f"The system refuses {nbytes:,} bytes of host memory for what is offloaded ({error}). Ask for less host "
            "memory, or raise the memory limit (ulimit -v, or that of the container)."
        )
        raise EnvironmentProblem(message, code="arena.no-memory", nbytes=nbytes) from error


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _advise(memory: mmap.mmap) -> None:
    """Before it is page-locked: large pages, and not in processes that are forked."""
    for name in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        if hasattr(mmap, name):
            with contextlib.suppress(OSError):  # a system without large pages refuses the first one
                memory.madvise(getattr(mmap, name))


def _end(memory: mmap.mmap | None, unlock: Callable[[], None] | None, owner: int | None) -> None:
    if memory is not None and owner not in (None, os.getpid()):
        _elsewhere.append(memory)  # closing it would unmap what is here in its place
        return
    if unlock is not None:
        unlock()
    # The mapping goes with the last that refers to it. To close it would take it from tensors: torch.frombuffer refers
    # to the object, but holds no buffer of it.


# ---------------------------------------------------------------------------------------------------------------------
# Page-locks host memory for a GPU: only then copies are fast and overlap with operations


def page_lock(device: str | torch.device = "cuda") -> PageLock:
    """Page-locks the mapping of an arena for a GPU, in one call and at its exact size.

    Where CUDA refuses, a warning says so, and the memory stays pageable: slower, and right.

    Returns:
        What `HostArena(lock=...)` takes.
    """

    def lock(address: int, nbytes: int) -> Callable[[], None] | None:
        owner = os.getpid()
        with torch.cuda.device(device):
            runtime = torch.cuda.cudart()
            code = int(runtime.cudaHostRegister(address, nbytes, 0))
            if code:
                _forget_error()
                warnings.warn(_refused(nbytes, code), RuntimeWarning, stacklevel=3)
                return None

        def unlock() -> None:
            if os.getpid() != owner:
                return  # a process that was forked has no part in it
            with contextlib.suppress(RuntimeError):  # nothing is copied any more where CUDA has ended
                torch.cuda.synchronize(device)  # a copy may be under way
            runtime.cudaHostUnregister(address)

        return unlock

    return lock


def _refused(nbytes: int, code: int) -> str:
    return (
        f"CUDA refuses to page-lock {nbytes:,} bytes of host memory (error {code}): copies from and to it are slow. "
        "Ask for less host memory, or raise the limit of locked memory (ulimit -l)."
    )


def _forget_error() -> None:
    """CUDA keeps the code of a call that it refused, and torch would raise it at its next kernel: this is that one."""
    with contextlib.suppress(RuntimeError):
        torch.empty(1, device="cuda").fill_(0.0)
