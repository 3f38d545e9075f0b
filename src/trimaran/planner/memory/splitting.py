"""Micro-split: what the floor would be if the operations at the floor ran in parts of the batch.

Where much is needed at once, a run of operations can take the batch in k parts, one after the other. A storage whose
time on the device lies within the run is then needed in parts, and takes a k-th. What was there before the run, or must
be whole after it, stays whole: so does what has nothing to do with the batch.

    needed    ____‾‾‾‾‾‾‾____        run: moments at which more is needed than some level x
    parts     ____-_--_-_____        within it, what lives only there counts b/k

The level is the highest that brings the floor down as far as any level does. Operations that mix the samples of a batch
(batch norm) cannot run in parts: runs that hold one stay as they are. An analysis only: no plan splits operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.errors import InputError
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp
from trimaran.planner.memory.floor import away_span, needed_bytes

_LEVELS = 64
_MIXING = "batch_norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFloor:
    """The floor when some operations run in parts of the batch.

    Attributes:
        nbytes: the floor [bytes]
        parts: number of parts
        runs: moments `[first, end)` of each run that is split, ascending
        operations: number of operations in them
    """

    nbytes: int
    parts: int
    runs: tuple[tuple[int, int], ...]
    operations: int


def split_floor(trace: StepTrace, parts: int) -> SplitFloor:
    """The floor of a step if the operations at its floor ran in parts of the batch.

    Args:
        trace: the step
        parts: number of parts, at least 2

    Raises:
        InputError: less than 2 parts
    """
    if parts < 2:
        raise InputError(
            f"a batch is split into 2 parts or more, not {parts}", code="memory-plan.too-few-parts", parts=parts
        )
    needed = needed_bytes(trace)
    highest = int(needed.max(initial=0))
    best = SplitFloor(nbytes=highest, parts=parts, runs=(), operations=0)
    stays = _stays(trace)
    mixing = np.array([isinstance(event, TraceOp) and _MIXING in event.name for event in trace.events], dtype=np.bool_)
    for level in np.linspace(highest, 0, _LEVELS, endpoint=False)[1:]:
        runs = [run for run in _runs(needed > level) if not mixing[run[0] : run[1]].any()]
        reduced = needed - _saved(stays, runs, parts, trace.length)
        found = int(reduced.max(initial=0))
        # A little less is not worth splitting more.
        if found < 0.99 * best.nbytes:
            operations = sum(isinstance(event, TraceOp) for start, end in runs for event in trace.events[start:end])
            best = SplitFloor(nbytes=found, parts=parts, runs=tuple(runs), operations=operations)
    return best


def _stays(trace: StepTrace) -> list[tuple[int, int, int]]:
    """(start, end, bytes) of each stretch that an activation must be on the device."""
    stays = []
    for storage in trace.storages:
        if storage.role not in (Role.ACTIVATION, Role.INPUT) or storage.nbytes == 0:
            continue
        pieces = [(storage.birth, storage.keep_end)]
        if storage.movable:
            gone, use = away_span(trace, storage)
            if gone < use:
                ends = [event.end for moment in storage.unpacks if isinstance(event := trace.events[moment], Tick)]
                pieces = [(storage.birth, gone), (use, max(ends))]
        stays += [(start, end, storage.nbytes) for start, end in pieces if start < end]
    return stays


def _runs(above: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], above.astype(np.int8), [0]))))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _saved(
    stays: Sequence[tuple[int, int, int]], runs: Sequence[tuple[int, int]], parts: int, length: int
) -> NDArray[np.int64]:
    """Bytes that need not be there at each moment when the runs are split."""
    change = np.zeros(length + 1, dtype=np.int64)
    starts = np.array([start for start, _ in runs])
    for start, end, nbytes in stays:
        run = int(np.searchsorted(starts, start, side="right")) - 1
        if run >= 0 and end <= runs[run][1]:
            less = nbytes - -(-nbytes // parts)
            change[start] += less
            change[end] -= less
    total: NDArray[np.int64] = np.cumsum(change[:-1])
    return total
