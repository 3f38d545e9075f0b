"""Samples that stay in memory after their first read, for all ranks and workers of a host.

They lie in one anonymous file in memory that all of them have mapped: a mark for each sample, then for each leaf of a
sample one block for all samples. It has no name, so that nothing is left when everybody is gone, even killed, and the
size of /dev/shm does not limit it. Others open it through the process that made it.

    marks   0 1 1 0 2 …        1: it is complete; 2: it does not fit
    input   [samples, 3, 32, 32]
    target  [samples]

Two processes may read a sample for the first time at once: both write the same bytes.

A processor may show other cores a mark before the sample that was written ahead of it. So a mark is set, and looked at
for the first time, with its byte locked: whoever finds it set comes after whoever set it, with all that this one wrote
before. A process remembers which samples it has found, and locks nothing for them again.

Source:
    fcntl(2), locks of records: they belong to processes, forked ones too, and end with them.
"""

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trimaran.runtime.feed.layouts import Layout, Uncachable, layout_of, leaves_of, rebuild

_COMPLETE, _MISFIT = 1, 2
_ALIGNMENT = 64


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
        start = _aligned(samples)
        for leaf in layout.leaves:
            block = memory[start : start + samples * leaf.nbytes].view(leaf.dtype).view(samples, *leaf.shape)
            self._blocks.append(block if leaf.kind == "tensor" else block.numpy())
            start += _aligned(samples * leaf.nbytes)

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
        with self._locked(number, fcntl.LOCK_EX):
            self._marks[number] = _COMPLETE if fits else _MISFIT

    def _find(self, number: int) -> bool:
        with self._locked(number, fcntl.LOCK_SH):
            self._found[number] = int(self._marks[number]) == _COMPLETE
        return bool(self._found[number])

    @contextmanager
    def _locked(self, number: int, kind: int) -> Iterator[None]:
        fcntl.lockf(self._file, kind, 1, number)
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
    return _aligned(samples) + sum(_aligned(samples * leaf.nbytes) for leaf in layout.leaves)


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


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
