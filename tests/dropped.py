"""Live bytes of a step in which everything that autograd packs is dropped between its uses, as in published floors.

A storage is there again only while a node uses it. Our plans bring a storage back once, so they need as much or more.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trimaran.graph.trace.live_bytes import scratch_bytes, sum_of_lives
from trimaran.graph.trace.types import StepTrace


def live_dropped(trace: StepTrace) -> NDArray[np.int64]:
    """Bytes at each moment if every movable storage were there only outside of autograd and while a node uses it."""
    return sum_of_lives(trace, _dropped_lives(trace)) + scratch_bytes(trace)


def _dropped_lives(trace: StepTrace) -> Iterator[tuple[int, int, int]]:
    windows: dict[int, list[tuple[int, int]]] = {}
    for tick in trace.unpacks:
        windows.setdefault(tick.storage, []).append((tick.moment, tick.end))
    for storage in trace.storages:
        if not storage.movable:
            yield storage.birth, storage.keep_end, storage.nbytes
            continue
        until = storage.outside_end
        yield storage.birth, until, storage.nbytes
        for start, end in windows.get(storage.number, ()):
            start = max(start, until)
            if end > start:
                yield start, end, storage.nbytes
                until = end
