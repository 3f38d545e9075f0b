"""One cache of samples for all ranks of a host: who makes it, and whether it can be.

    every rank                    first rank of a host that reads         the others that read
    ──────────                    ───────────────────────────────         ────────────────────
    says its host        ──▶      looks at some samples
                                  makes the memory, offers it    ──▶      open it

A sample that differs when it is read again must not be kept: training would see one draw of it for ever. So the first
few are read twice, under different seeds; a data set in which others draw is found out while it is read (`reading`).
"""

import os
import pickle
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from trimaran.cluster.host_memory import free_memory_bytes
from trimaran.runtime.feed.cache import SampleCache, cache_bytes, make_memory
from trimaran.runtime.feed.layouts import Layout, Uncachable, layout_of, leaves_of
from trimaran.runtime.seeds import find_moved, mark_host, seeded
from trimaran.units import format_bytes

LOOKED_AT = 4
"""Samples that are looked at, the first ones of the data set."""

_OF_FREE_MEMORY = 0.8

Exchange = Callable[[Any], list[Any]]
"""Gives everybody what each rank said, by rank; every rank calls it."""


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
        """Nobody else will open it."""
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
    host = "" if dataset is None else _host()
    hosts = exchange(host)
    first = hosts.index(host)
    mine, descriptor = offer_cache(dataset, samples) if host and first == rank else (Offer(), -1)
    shared = Shared(descriptor=descriptor)
    try:
        offer: Offer = exchange(mine)[first]
        if host:
            shared.cache, shared.note = _open(offer, samples)
        # Whoever made it may close it only after everybody has opened it.
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
            marks = mark_host()
            sample = dataset[number]
            drawn = find_moved(marks)
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
        # Written by a rank of this program, through a group that nobody else is in.
        layout = pickle.loads(offer.layout)  # noqa: S301
        return SampleCache(layout, samples, offer.path), ""
    except (OSError, RuntimeError, pickle.UnpicklingError, AttributeError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None, f"samples are not cached on this rank, they are read each time: {reason}"


def _host() -> str:
    """This host, and what processes it shows: those of another container could not open the memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    processes = Path("/proc/self/ns/pid")
    return "/".join((
        socket.gethostname(),
        boot.read_text().strip() if boot.exists() else "",
        str(processes.readlink()) if processes.is_symlink() else "",
    ))  # fmt: skip
