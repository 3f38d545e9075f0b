"""A cache in memory of the samples of a data set, for all ranks and workers of a host.

Samples are in one anonymous file in memory that all of them have mapped: a mark for each sample, then for each sample
as much room as those that were looked at take, in which it lies as a batch of a worker does (`worker_transport`). The
file has no name, so that it is gone with the last process, even after a kill, and the size of /dev/shm does not limit
it. Others open it through the process that made it.

    marks   0 2 2 0 255 …      parts of a sample that is complete; 255: it does not fit
    slots   [samples, slot_bytes]

A processor may show other cores a mark before the sample that was written earlier. So a sample is written, and its mark
set and read for the first time, with its byte locked: a process that finds it set also sees everything that was written
before. A process remembers which samples it has found, and does not lock again for them.

Source:
    fcntl(2), locks of records: they belong to processes, forked ones too, and end with them.

The first rank of a host that reads makes the cache, where samples can be kept:

    every rank                    first rank of a host that reads         the others that read
    ──────────                    ───────────────────────────────         ────────────────────
    says its host        ──▶      looks at some samples
                                  makes the memory, offers it    ──▶      open it

A sample that differs when it is read again must not be kept: training would always see the same draw of it. So the
first few are read twice, under different seeds; draws of other samples are noticed when these are read (`reading`).
"""

import os
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from trimaran.base.units import format_bytes
from trimaran.launch.world import running_system
from trimaran.machine.detect import free_memory_bytes
from trimaran.runtime.communication.shared_memory import aligned
from trimaran.runtime.data.worker_transport import Arrived, Packed, map_file
from trimaran.user_code.randomness import find_moved, host_states, seeded

_MISFIT = 255


class Uncachable(Exception):
    """A sample that cannot be kept; its text says why."""


def packed(sample: Any) -> Packed:
    """A sample as it is kept.

    Args:
        sample: as a data set gave it

    Raises:
        Uncachable: it is tied to a device or a graph, or cannot be pickled
    """
    try:
        found = Packed(sample, least_bytes=0)
        leaves = [leaf for leaf in tree_leaves(sample) if isinstance(leaf, torch.Tensor)]
    except Exception as error:  # noqa: BLE001 whatever an object of the user's raises
        raise Uncachable(f"it cannot be pickled: {type(error).__name__}") from None
    if any(leaf.requires_grad or leaf.device.type != "cpu" for leaf in leaves):
        raise Uncachable("it holds a tensor that has a gradient, or is on a device")
    if len(found.sizes) >= _MISFIT:
        raise Uncachable(f"it has {len(found.sizes)} parts")
    return found


class SampleCache:
    """The samples of a data set, as far as they have been read.

    Args:
        slot_bytes: room for each sample [bytes]
        samples: of the data set
        path: of the file that holds them
    """

    def __init__(self, slot_bytes: int, samples: int, path: str) -> None:
        self._state = slot_bytes, samples, path
        self._slot_bytes = slot_bytes
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._memory = map_file(self._file, cache_bytes(slot_bytes, samples))
        self._marks = self._memory[:samples]
        self._start = aligned(samples)
        self._found = bytearray(samples)

    def __reduce__(self) -> tuple[Any, ...]:
        """For workers that are not forked: they open the file too."""
        return SampleCache, self._state

    def get(self, number: int, *, copy: bool) -> Any:
        """A sample; None: it is not there.

        Args:
            number: of the sample
            copy: its tensors do not share the memory of the cache
        """
        if not self._found[number]:
            with self._locked(number, shared=True):
                self._found[number] = self._marks[number] % _MISFIT
        parts, slot = self._found[number], self._slot(number)
        return Arrived(memoryview(bytearray(slot)) if copy else slot, parts).unpack() if parts else None

    def put(self, number: int, sample: Any) -> None:
        """Keep a sample, if it is no larger than others.

        Args:
            number: of the sample
            sample: as the data set gave it
        """
        try:
            found = packed(sample)
            fits = found.nbytes <= self._slot_bytes
        except Uncachable:
            fits = False
        with self._locked(number, shared=False):
            if fits and not self._marks[number]:
                found.write(self._slot(number))
            self._marks[number] = self._marks[number] or (len(found.sizes) if fits else _MISFIT)

    def _slot(self, number: int) -> memoryview:
        start = self._start + number * self._slot_bytes
        return self._memory[start : start + self._slot_bytes]

    @contextmanager
    def _locked(self, number: int, *, shared: bool) -> Iterator[None]:
        import fcntl

        fcntl.lockf(self._file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, 1, number)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    @property
    def kept(self) -> int:
        """Samples that are there."""
        return len(self._marks) - bytes(self._marks).count(0) - self.misfits

    @property
    def misfits(self) -> int:
        """Samples that were read and do not fit, so that they are read each time."""
        return bytes(self._marks).count(_MISFIT)


def cache_bytes(slot_bytes: int, samples: int) -> int:
    """Size of a cache [bytes].

    Args:
        slot_bytes: room for each sample [bytes]
        samples: of the data set
    """
    return aligned(samples) + samples * slot_bytes


def make_memory(nbytes: int) -> tuple[int, str]:
    """An anonymous file in memory; it takes what is written to it.

    Args:
        nbytes: its size [bytes]

    Returns:
        Its descriptor here, and a path by which other processes of this user can open it while that is open.
    """
    descriptor = os.memfd_create("trimaran-samples", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, nbytes)
    return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"


LOOKED_AT = 4
"""Samples that are looked at, the first ones of the data set."""

_OF_FREE_MEMORY = 0.8

Exchange = Callable[[Any], list[Any]]
"""Gives every rank the values of all ranks, by rank; every rank calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the first rank of a host found.

    Attributes:
        path: of the memory; empty: there is none
        slot_bytes: room for each sample [bytes]
        note: why not
    """

    path: str = ""
    slot_bytes: int = 0
    note: str = ""


@dataclass(slots=True, kw_only=True)
class HostCache:
    """A rank's end of the cache of its host.

    Attributes:
        cache: None: samples are read each time
        note: why, for people; empty where there is a cache, or nothing is read
        descriptor: of the memory, where this rank made it
    """

    cache: SampleCache | None = None
    note: str = ""
    descriptor: int = -1

    def close(self) -> None:
        """Close the memory; all ranks have opened it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def share_cache(dataset: Any, samples: int, *, rank: int, exchange: Exchange) -> HostCache:
    """Take part in the cache of this host; every rank of the world calls it.

    Args:
        dataset: this rank's; None: it reads nothing
        samples: of the data set
        rank: number of this rank
        exchange: with all ranks
    """
    # Processes of another container could not open the memory.
    host = "" if dataset is None else running_system("pid") or socket.gethostname()
    hosts = exchange(host)
    first = hosts.index(host)
    mine, descriptor = offer_cache(dataset, samples) if host and first == rank else (Offer(), -1)
    shared = HostCache(descriptor=descriptor)
    try:
        offer: Offer = exchange(mine)[first]
        if host:
            shared.cache, shared.note = _open(offer, samples)
        # The rank that made it may close it only after all ranks have opened it.
        exchange(None)
    except BaseException:
        shared.close()
        raise
    return shared


def offer_cache(dataset: Any, samples: int) -> tuple[Offer, int]:
    """Make the memory of a cache, if there can be one.

    Args:
        dataset: map-style
        samples: of the data set

    Returns:
        The offer, and the descriptor of its memory; -1: there is none.
    """
    try:
        slot_bytes = look_at(dataset, samples)
        nbytes, free = cache_bytes(slot_bytes, samples), free_memory_bytes()
        if nbytes > _OF_FREE_MEMORY * free:
            raise Uncachable(
                f"{samples} samples take {format_bytes(nbytes)}, and {format_bytes(free)} of memory are free"
            )
        descriptor, path = make_memory(nbytes)
    except (Uncachable, OSError) as error:
        return Offer(note=f"samples are not cached, they are read each time: {error}"), -1
    return Offer(path=path, slot_bytes=slot_bytes), descriptor


def look_at(dataset: Any, samples: int) -> int:
    """The room that a sample of a data set takes, from the first few of them [bytes].

    Args:
        dataset: map-style
        samples: of the data set

    Raises:
        Uncachable: they are not alike, or one is another when it is read again
    """
    looked_at: list[Packed] = []
    for number in range(min(LOOKED_AT, samples)):
        once, again = packed(_read(dataset, number, 1)), packed(_read(dataset, number, 2))
        if looked_at and once.sizes[1:] != looked_at[0].sizes[1:]:
            raise Uncachable(f"samples are not alike: sample {number} has other parts, or sizes, than sample 0")
        if once.content != again.content:
            raise Uncachable(f"sample {number} is not the same when it is read again")
        looked_at.append(once)
    if not looked_at:
        raise Uncachable("there is none")
    return slot_of(looked_at)


def slot_of(looked_at: Sequence[Packed]) -> int:
    """The room for samples like some [bytes]; numbers of others may take some bytes more."""
    return max(one.nbytes for one in looked_at) + aligned(1)


def _read(dataset: Any, number: int, seed: int) -> Any:
    try:
        with seeded(seed):
            before = host_states()
            sample = dataset[number]
            drawn = find_moved(before)
    except Exception as error:  # noqa: BLE001 whatever the user's code raises
        raise Uncachable(f"sample {number} could not be read: {type(error).__name__}") from None
    if drawn:
        raise Uncachable(f"sample {number} draws random numbers, and must be drawn anew in each epoch")
    return sample


def _open(offer: Offer, samples: int) -> tuple[SampleCache | None, str]:
    if not offer.path:
        return None, offer.note
    try:
        return SampleCache(offer.slot_bytes, samples, offer.path), ""
    except OSError as error:
        return None, f"samples are not cached on this rank, they are read each time: {error}"
