"""Bytes that are there at each moment, with what autograd holds in an ordinary step and without.

Memory at a moment is a sum over lives, so it depends on no clock. `live_kept` is an ordinary step. In `live_dropped`
everything that autograd packs is let go, and is there again only while a node uses it: no plan that moves whole
storages can need less, and its peak is the floor.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from trimaran.graph.trace.types import Role, StepTrace, TraceOp, TraceStorage, Value

Live = NDArray[np.int64]
"""Bytes at each moment [bytes]."""

WEIGHTS = frozenset({Role.PARAMETER, Role.BUFFER, Role.GRADIENT, Role.OPTIMIZER})
"""Roles that do not grow with the batch."""

EVERY = frozenset(Role)


def live_kept(trace: StepTrace, roles: Iterable[Role] = EVERY) -> Live:
    """Bytes at each moment of an ordinary step, where autograd holds what it packs.

    Args:
        trace: of the step
        roles: which storages count
    """
    lives = ((storage.birth, storage.keep_end, storage.nbytes) for storage in _of(trace, roles))
    return _sum(trace, lives) + _scratch(trace, roles)


def live_dropped(trace: StepTrace, roles: Iterable[Role] = EVERY) -> Live:
    """Bytes at each moment if every movable storage were there only outside of autograd and while a node uses it.

    Args:
        trace: of the step
        roles: which storages count
    """
    windows: dict[int, list[tuple[int, int]]] = {}
    for tick in trace.unpacks:
        windows.setdefault(tick.storage, []).append((tick.moment, tick.end))
    return _sum(trace, _dropped_lives(trace, roles, windows)) + _scratch(trace, roles)


def peak(live: Live) -> int:
    """Largest number of bytes at any moment [bytes]."""
    return int(live.max(initial=0))


def mean(live: Live) -> float:
    """Mean over the moments [bytes]. It weighs every operation and tick alike, whatever time it takes."""
    return float(live.mean()) if live.size else 0.0


def without_weights() -> frozenset[Role]:
    """Roles that grow with the batch: inputs and activations."""
    return EVERY - WEIGHTS


def writers(trace: StepTrace) -> dict[Value, int]:
    """The moment of the operation that makes each value."""
    return {value: operation.moment for operation in trace.ops for value in operation.writes}


def scratch_bytes(trace: StepTrace) -> Live:
    """What is on the device at each moment only while an operation runs there [bytes]."""
    sizes = (event.scratch_bytes if isinstance(event, TraceOp) else 0 for event in trace.events)
    return np.fromiter(sizes, dtype=np.int64, count=trace.length)


def _scratch(trace: StepTrace, roles: Iterable[Role]) -> Live:
    """It grows with the batch, as activations do."""
    return scratch_bytes(trace) if Role.ACTIVATION in roles else np.zeros(trace.length, dtype=np.int64)


def _of(trace: StepTrace, roles: Iterable[Role]) -> Iterator[TraceStorage]:
    wanted = frozenset(roles)
    return (storage for storage in trace.storages if storage.role in wanted)


def _dropped_lives(
    trace: StepTrace, roles: Iterable[Role], windows: dict[int, list[tuple[int, int]]]
) -> Iterator[tuple[int, int, int]]:
    for storage in _of(trace, roles):
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


def _sum(trace: StepTrace, lives: Iterable[tuple[int, int, int]]) -> Live:
    change = np.zeros(trace.length + 1, dtype=np.int64)
    for birth, end, nbytes in lives:
        change[max(birth, 0)] += nbytes
        change[max(end, 0)] -= nbytes
    return np.cumsum(change[:-1])
