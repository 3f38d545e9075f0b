"""A cache in memory of the samples of a data set, for all ranks and workers of a host.

Samples are in one anonymous file in memory that all of them have mapped: a mark for each sample, then for each leaf of
a sample one block for all samples. The file has no name, so that it is gone with the last process, even after a kill,
and the size of /dev/shm does not limit it. Others open it through the process that made it.

    marks   0 1 1 0 2 …        1: it is complete; 2: it does not fit
    input   [samples, 3, 32, 32]
    target  [samples]

Two processes may read a sample for the first time at once: both write the same bytes.

A processor may show other cores a mark before the sample that was written earlier. So a mark is set, and read for the
first time, with its byte locked: a process that finds it set also sees everything that was written before. A process
remembers which samples it has found, and does not lock again for them.

Source:
    fcntl(2), locks of records: they belong to processes, forked ones too, and end with them.

A sample is tuples, lists and dicts of leaves. A leaf that can be kept is a plain tensor of the host, an array or number
of numpy, or a number of Python; it is returned as the same type, with the same bits.

The first rank of a host that reads makes the cache, where samples can be kept:

    every rank                    first rank of a host that reads         the others that read
    ──────────                    ───────────────────────────────         ────────────────────
    says its host        ──▶      looks at some samples
                                  makes the memory, offers it    ──▶      open it

A sample that differs when it is read again must not be kept: training would always see the same draw of it. So the
first few are read twice, under different seeds; draws of other samples are noticed when these are read (`reading`).
"""

import math
import os
import pickle
import socket
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy
import torch

from trimaran.base.units import format_bytes
from trimaran.launch.world import running_system
from trimaran.machine.detect import free_memory_bytes
from trimaran.runtime.communication.shared_memory import aligned
from trimaran.user_code.randomness import find_moved, host_states, seeded

Kind = Literal["tensor", "array", "scalar", "int", "float", "bool"]

_NUMBERS: dict[type, tuple[Kind, torch.dtype]] = {
    bool: ("bool", torch.bool),
    int: ("int", torch.int64),
    float: ("float", torch.float64),
}


class Uncachable(Exception):
    """A sample that cannot be kept; its text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf of every sample.

    Attributes:
        kind: "tensor"; "array" and "scalar" of numpy; a number of Python
        dtype: in which it is kept
        shape: of the leaf
    """

    kind: Kind
    dtype: torch.dtype
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Of one sample's [bytes]."""
        return math.prod(self.shape) * self.dtype.itemsize

    def take(self, block: Any, number: int, *, copy: bool) -> Any:
        """One sample's from the block of all.

        Args:
            block: a tensor for tensors, else an array; [samples, *shape]
            number: of the sample
            copy: it does not share the memory of the block
        """
        if self.kind == "tensor":
            return block[number].clone() if copy else block[number]
        if self.kind == "array":
            return numpy.array(block[number], copy=True if copy else None)
        return block[number] if self.kind == "scalar" else block[number].item()

    def put(self, block: Any, number: int, value: Any) -> None:
        """Write one sample's into the block of all.

        Args:
            block: as for `take`
            number: of the sample
            value: of this leaf's kind, dtype and shape
        """
        if self.kind == "tensor":
            block[number].copy_(value)
        else:
            block[number] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What every sample is made of.

    Attributes:
        nesting: its containers, as nested tuples; numbers stand for leaves
        leaves: in the order of the nesting
    """

    nesting: Any
    leaves: tuple[Leaf, ...]


def layout_of(sample: Any) -> Layout:
    """What a sample is made of.

    Args:
        sample: as a data set gave it

    Raises:
        Uncachable: something in it cannot be kept

    Example:
        >>> [leaf.kind for leaf in layout_of((torch.zeros(3), 4)).leaves]
        ['tensor', 'int']
    """
    values: list[Any] = []
    nesting = _nest(sample, values)
    if not values:
        raise Uncachable("it is empty")
    return Layout(nesting=nesting, leaves=tuple(_leaf(value) for value in values))


def leaves_of(sample: Any) -> list[Any]:
    """The leaves of a sample, in the order of its nesting."""
    values: list[Any] = []
    _nest(sample, values)
    return values


def rebuild(nesting: Any, values: Sequence[Any]) -> Any:
    """A sample from its leaves.

    Args:
        nesting: of a layout
        values: leaves, in its order

    Example:
        >>> layout = layout_of({"a": 1, "b": (2, 3)})
        >>> rebuild(layout.nesting, [4, 5, 6])
        {'a': 4, 'b': (5, 6)}
    """
    if isinstance(nesting, int):
        return values[nesting]
    kind, keys, parts = nesting
    inner = [rebuild(part, values) for part in parts]
    if keys is not None:
        return kind(zip(keys, inner, strict=True))
    return kind(*inner) if hasattr(kind, "_fields") else kind(inner)


def _nest(value: Any, values: list[Any]) -> Any:
    kind = type(value)
    if kind in (dict, OrderedDict):
        return kind, tuple(value), tuple(_nest(part, values) for part in value.values())
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return kind, None, tuple(_nest(part, values) for part in value)
    values.append(value)
    return len(values) - 1


def _leaf(value: Any) -> Leaf:
    number = _NUMBERS.get(type(value))
    if number is not None:
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise Uncachable(f"it holds the number {value}, which takes more than 64 bits")
        return Leaf(kind=number[0], dtype=number[1])
    if type(value) is torch.Tensor:
        if value.layout != torch.strided or value.device.type != "cpu" or value.requires_grad or value.is_quantized:
            raise Uncachable(f"it holds a tensor that is {value.layout}, on {value.device}, or has a gradient")
        return Leaf(kind="tensor", dtype=value.dtype, shape=tuple(value.shape))
    if type(value) is numpy.ndarray or isinstance(value, numpy.generic):
        kind: Kind = "array" if type(value) is numpy.ndarray else "scalar"
        return Leaf(kind=kind, dtype=_torch_dtype(value.dtype), shape=tuple(value.shape))
    raise Uncachable(f"it holds a {type(value).__name__}; kept are tensors, arrays and numbers")


def _torch_dtype(dtype: Any) -> torch.dtype:
    try:
        found: torch.dtype = torch.from_numpy(numpy.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        raise Uncachable(f"it holds an array of {dtype}, which torch does not have") from None
    return found


_COMPLETE, _MISFIT = 1, 2


class SampleCache:
    """The samples of a data set, as far as they have been read.

    Args:
        layout: of each sample
        samples: of the data set
        path: of the file that holds them
    """

    def __init__(self, layout: Layout, samples: int, path: str) -> None:
        self._state = layout, samples, path
        self._layout = layout
        memory = torch.from_file(path, shared=True, size=cache_bytes(layout, samples), dtype=torch.uint8)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._marks = memory[:samples].numpy()
        self._found = bytearray(samples)
        self._blocks: list[Any] = []
        start = aligned(samples)
        for leaf in layout.leaves:
            block = memory[start : start + samples * leaf.nbytes].view(leaf.dtype).view(samples, *leaf.shape)
            self._blocks.append(block if leaf.kind == "tensor" else block.numpy())
            start += aligned(samples * leaf.nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """For workers that are not forked: they open the file too."""
        return SampleCache, self._state

    def get(self, number: int, *, copy: bool) -> Any:
        """A sample; None: it is not there.

        Args:
            number: of the sample
            copy: its tensors do not share the memory of the cache
        """
        if not self._found[number] and not self._find(number):
            return None
        leaves = [
            leaf.take(block, number, copy=copy) for leaf, block in zip(self._layout.leaves, self._blocks, strict=True)
        ]
        return rebuild(self._layout.nesting, leaves)

    def put(self, number: int, sample: Any) -> None:
        """Keep a sample, if it is like the others.

        Args:
            number: of the sample
            sample: as the data set gave it
        """
        try:
            fits = layout_of(sample) == self._layout
        except Uncachable:
            fits = False
        if fits:
            for leaf, block, value in zip(self._layout.leaves, self._blocks, leaves_of(sample), strict=True):
                leaf.put(block, number, value)
        with self._locked(number, shared=False):
            self._marks[number] = _COMPLETE if fits else _MISFIT

    def _find(self, number: int) -> bool:
        with self._locked(number, shared=True):
            self._found[number] = int(self._marks[number]) == _COMPLETE
        return bool(self._found[number])

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
        return int((self._marks == _COMPLETE).sum())

    @property
    def misfits(self) -> int:
        """Samples that were read and are of another layout, so that they are read each time."""
        return int((self._marks == _MISFIT).sum())


def cache_bytes(layout: Layout, samples: int) -> int:
    """Size of a cache [bytes].

    Args:
        layout: of each sample
        samples: of the data set
    """
    return aligned(samples) + sum(aligned(samples * leaf.nbytes) for leaf in layout.leaves)


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
        layout: of its samples, pickled
        note: why not
    """

    path: str = ""
    layout: bytes = b""
    note: str = ""


@dataclass(slots=True, kw_only=True)
class Shared:
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


def share_cache(dataset: Any, samples: int, *, rank: int, exchange: Exchange) -> Shared:
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
    shared = Shared(descriptor=descriptor)
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
        layout = look_at(dataset, samples)
        nbytes, free = cache_bytes(layout, samples), free_memory_bytes()
        if nbytes > _OF_FREE_MEMORY * free:
            raise Uncachable(
                f"{samples} samples take {format_bytes(nbytes)}, and {format_bytes(free)} of memory are free"
            )
        pickled = pickle.dumps(layout)
        descriptor, path = make_memory(nbytes)
    except (Uncachable, OSError, pickle.PicklingError, AttributeError, TypeError) as error:
        return Offer(note=f"samples are not cached, they are read each time: {error}"), -1
    return Offer(path=path, layout=pickled), descriptor


def look_at(dataset: Any, samples: int) -> Layout:
    """What the samples of a data set are made of, from the first few of them.

    Args:
        dataset: map-style
        samples: of the data set

    Raises:
        Uncachable: they are not alike, or one is another when it is read again
    """
    layout: Layout | None = None
    for number in range(min(LOOKED_AT, samples)):
        once, again = _read(dataset, number, 1), _read(dataset, number, 2)
        found = layout_of(once)
        if layout is not None and found != layout:
            raise Uncachable(f"samples are not alike: sample {number} has other parts, shapes or types than sample 0")
        if layout_of(again) != found or not _same(once, again):
            raise Uncachable(f"sample {number} is not the same when it is read again")
        layout = found
    if layout is None:
        raise Uncachable("there is none")
    return layout


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


def _same(one: Any, other: Any) -> bool:
    """Bit by bit, also where a figure is no number."""
    pairs = zip(leaves_of(one), leaves_of(other), strict=True)
    return all(_bytes(mine) == _bytes(theirs) for mine, theirs in pairs)


def _bytes(leaf: Any) -> bytes:
    if not isinstance(leaf, torch.Tensor):
        # Not by torch, which takes no array that runs backwards, as mirrored pictures do.
        return numpy.asarray(leaf).tobytes()
    flat = leaf.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _open(offer: Offer, samples: int) -> tuple[SampleCache | None, str]:
    if not offer.path:
        return None, offer.note
    try:
        # Written by a rank of this program, through a group of these ranks only.
        layout = pickle.loads(offer.layout)  # noqa: S301
        return SampleCache(layout, samples, offer.path), ""
    except (OSError, RuntimeError, pickle.UnpicklingError, AttributeError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None, f"samples are not cached on this rank, they are read each time: {reason}"
