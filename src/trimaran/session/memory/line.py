"""The step of a job at any batch, from two traces of it.

A step runs the same operations at every batch, and each size in it is a fixed part and a part per sample. So what lies
on the straight line through two traces is what a trace would say, without one. Where a step does not keep to that
(other operations, other lives), there is no line.
"""

from collections.abc import Callable
from dataclasses import replace

from trimaran.errors import InputError
from trimaran.graph.trace.types import StepTrace, TraceOp, TraceStorage
from trimaran.planner.memory import floor


class BatchLine:
    """The step of a job as a function of its batch.

    Args:
        small: a trace
        large: one of another batch
        sizes: samples of the two

    Raises:
        InputError: the two do not run the same operations, or their storages live otherwise
    """

    def __init__(self, small: StepTrace, large: StepTrace, sizes: tuple[int, int]) -> None:
        if not _same_step(small, large):
            raise InputError(
                f"the step runs other operations with {sizes[1]} samples than with {sizes[0]}: trace each batch",
                code="memory.other-operations",
                small=sizes[0],
                large=sizes[1],
            )
        self._small, self._large, self._sizes = small, large, sizes

    def at(self, samples: int) -> StepTrace:
        """The step with so many samples."""
        first, second = self._sizes
        share = (samples - first) / (second - first)
        events = tuple(
            _op_between(one, other, share) if isinstance(one, TraceOp) and isinstance(other, TraceOp) else one
            for one, other in zip(self._small.events, self._large.events, strict=True)
        )
        storages = tuple(
            _storage_between(one, other, share)
            for one, other in zip(self._small.storages, self._large.storages, strict=True)
        )
        return replace(self._small, events=events, storages=storages)


def at_any_batch(trace: Callable[[int], StepTrace], samples: int) -> Callable[[int], StepTrace]:
    """The step as a function of its batch: on a line where it keeps to one, traced each time where it does not.

    Args:
        trace: traces the step with so many samples
        samples: a batch that is traced, with twice and three times as many; the last one is to see that the line holds
    """
    try:
        line = BatchLine(trace(samples), trace(2 * samples), (samples, 2 * samples))
    except InputError:
        return trace
    far = 3 * samples
    return line.at if floor(line.at(far)).nbytes == floor(trace(far)).nbytes else trace


def _same_step(one: StepTrace, other: StepTrace) -> bool:
    if one.length != other.length or len(one.storages) != len(other.storages):
        return False
    for first, second in zip(one.events, other.events, strict=True):
        names = [event.name if isinstance(event, TraceOp) else event.kind for event in (first, second)]
        if names[0] != names[1]:
            return False
    return all(_life(first) == _life(second) for first, second in zip(one.storages, other.storages, strict=True))


def _life(storage: TraceStorage) -> tuple[object, ...]:
    ends = (storage.birth, storage.outside_end, storage.keep_end)
    return (storage.role, ends, storage.packs, storage.unpacks, storage.version)


def _op_between(one: TraceOp, other: TraceOp, share: float) -> TraceOp:
    if one.flops == other.flops and one.nbytes == other.nbytes:
        return one
    return replace(
        one,
        flops=one.flops + (other.flops - one.flops) * share,
        nbytes=round(one.nbytes + (other.nbytes - one.nbytes) * share),
    )


def _storage_between(one: TraceStorage, other: TraceStorage, share: float) -> TraceStorage:
    if one.nbytes == other.nbytes and one.copy_bytes == other.copy_bytes:
        return one
    return replace(
        one,
        nbytes=round(one.nbytes + (other.nbytes - one.nbytes) * share),
        copy_bytes=round(one.copy_bytes + (other.copy_bytes - one.copy_bytes) * share),
    )
