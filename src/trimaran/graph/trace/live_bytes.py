"""Live bytes at each moment of an ordinary step, and peaks of steps at any batch.

Memory at a moment is a sum over lives, so it depends on no clock. From traces at two batches the peak follows exactly
at any batch. A storage is there from one moment to another, whatever the batch, and its size is `a + b * batch`. So
what is there at a moment is a line over the batch, and the peak of the step is the largest of these lines: a convex
function with a kink wherever another moment takes over. Of thousands of moments a few lines matter; these are kept.

    peak(batch) = max over lines of (fixed + per_sample * batch)

Left out: the rounding and the fragments of an allocator, the workspaces of libraries, and what an update holds besides
the state, beyond one parameter's.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.graph.trace.types import Role, StepTrace, TraceOp, TraceStorage, Value
from trimaran.graph.types import OUTSIDE, Line, Phase

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
    wanted = frozenset(roles)
    lives = ((one.birth, one.keep_end, one.nbytes) for one in trace.storages if one.role in wanted)
    live = sum_of_lives(trace, lives)
    # Scratch grows with the batch, as activations do.
    return live + scratch_bytes(trace) if Role.ACTIVATION in wanted else live


def sum_of_lives(trace: StepTrace, lives: Iterable[tuple[int, int, int]]) -> Live:
    """Bytes at each moment.

    Args:
        trace: of the step
        lives: `(first moment, end, bytes)` of each; empty ones do not count
    """
    change = np.zeros(trace.length + 1, dtype=np.int64)
    for start, end, nbytes in lives:
        if start < end:
            change[max(start, 0)] += nbytes
            change[min(end, trace.length)] -= nbytes
    return np.cumsum(change[:-1])


def writers(trace: StepTrace) -> dict[Value, int]:
    """The moment of the operation that makes each value."""
    return {value: operation.moment for operation in trace.ops for value in operation.writes}


def scratch_bytes(trace: StepTrace) -> Live:
    """Bytes at each moment that are there only while an operation runs [bytes]."""
    sizes = (event.scratch_bytes if isinstance(event, TraceOp) else 0 for event in trace.events)
    return np.fromiter(sizes, dtype=np.int64, count=trace.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBytes:
    """What autograd keeps of the storages that operations of one origin make, from the forward to the backward.

    Attributes:
        origin: of the operations (`TraceOp.origin`)
        fixed: such as casts of weights [bytes]
        per_sample: for each sample in addition [bytes]
    """

    origin: str
    fixed: int
    per_sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassingBytes:
    """Activations that autograd does not keep, while operations of one origin run.

    Attributes:
        origin: of the operations (`TraceOp.origin`)
        backward: whether they are those of the backward
        lines: of which the largest at a batch is the most
    """

    origin: str
    backward: bool
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """What one step needs on one device.

    Attributes:
        lines: of which the largest at a batch is the peak; gradients come and go with the step
        lines_without_gradients: the same without gradients, for those who keep them from step to step
        parameter_bytes: of all parameters [bytes]
        buffer_bytes: of all buffers [bytes]
        gradient_bytes: of all gradients [bytes]
        optimizer_bytes: state of the optimizer [bytes]
        kept: by autograd, by what makes it, in the order of the forward; the batch and the weights are not in it. Empty
            where checkpoints run parts of the forward again: the graph of such a job runs without them
        passing: what is there in addition while operations run, in the order of the step; empty where `kept` is
    """

    lines: tuple[Line, ...]
    lines_without_gradients: tuple[Line, ...]
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    kept: tuple[KeptBytes, ...] = ()
    passing: tuple[PassingBytes, ...] = ()

    def peak(self, batch: int, *, keeps_gradients: bool = False) -> int:
        """Largest number of bytes at any moment [bytes].

        Args:
            batch: samples of the step
            keeps_gradients: gradients are there all the time, as where they are set to zero and not dropped

        Example:
            >>> step = StepMemory(lines=((100, 1), (10, 5)), lines_without_gradients=((50, 1),), parameter_bytes=40,
            ...     buffer_bytes=0, gradient_bytes=40, optimizer_bytes=0)
            >>> step.peak(1), step.peak(100), step.peak(1, keeps_gradients=True)
            (101, 510, 91)
        """
        if keeps_gradients:
            return self.gradient_bytes + largest(self.lines_without_gradients, batch)
        return largest(self.lines, batch)


def step_memory(low: StepTrace, high: StepTrace, *, batch: int, untraced_bytes: int = 0) -> StepMemory | None:
    """The memory of a step as a function of the batch.

    Args:
        low: the step with one sample less; it may lack the update
        high: the step
        batch: samples of `high`
        untraced_bytes: state of the optimizer that is there besides what was traced [bytes]

    Returns:
        It; None: the two differ in more than sizes.
    """
    if len(low.storages) > len(high.storages) or not all(map(_same_life, low.storages, high.storages)):
        return None
    # Storages that the update makes come last, and depend on no batch.
    gains = [after.nbytes - before.nbytes for before, after in zip(low.storages, high.storages, strict=False)]
    gains += [0] * (len(high.storages) - len(gains))
    gradients = set(high.gradients.values())
    totals = {role: sum(storage.nbytes for storage in high.storages if storage.role is role) for role in Role}
    others = [storage for storage in high.storages if storage.number not in gradients]
    return StepMemory(
        lines=_lines(high, gains, high.storages, batch, untraced_bytes),
        lines_without_gradients=_lines(high, gains, others, batch, untraced_bytes),
        parameter_bytes=totals[Role.PARAMETER],
        buffer_bytes=totals[Role.BUFFER],
        gradient_bytes=sum(high.storages[number].nbytes for number in gradients),
        optimizer_bytes=totals[Role.OPTIMIZER] + untraced_bytes,
        kept=_kept(high, gains, batch),
        passing=_passing(high, gains, batch),
    )


def _kept(trace: StepTrace, gains: list[int], batch: int) -> tuple[KeptBytes, ...]:
    found: dict[str, Line] = {}
    if trace.repeats:
        return ()
    for storage in trace.storages:
        if storage.role is Role.ACTIVATION and storage.packs and storage.birth >= 0:
            maker = trace.events[storage.birth]
            origin = maker.origin if isinstance(maker, TraceOp) else OUTSIDE
            fixed, per_sample = found.get(origin, (0, 0))
            gain = gains[storage.number]
            found[origin] = fixed + storage.nbytes - batch * gain, per_sample + gain
    return tuple(KeptBytes(origin=origin, fixed=a, per_sample=b) for origin, (a, b) in found.items())


def _passing(trace: StepTrace, gains: list[int], batch: int) -> tuple[PassingBytes, ...]:
    if trace.repeats:
        return ()
    others = [one for one in trace.storages if one.role is Role.ACTIVATION and not one.packs]
    there, gained = _there(trace, gains, others)
    lines: dict[tuple[str, bool], list[Line]] = {}
    for operation in trace.ops:
        if operation.phase is not Phase.UPDATE:
            fixed, per_sample = int(there[operation.moment]), int(gained[operation.moment])
            key = operation.origin, operation.phase is Phase.BACKWARD
            lines.setdefault(key, []).append((fixed - batch * per_sample, per_sample))
    return tuple(
        PassingBytes(origin=origin, backward=backward, lines=_envelope(found))
        for (origin, backward), found in lines.items()
    )


def _same_life(before: TraceStorage, after: TraceStorage) -> bool:
    return before.birth == after.birth and before.module == after.module


def _lines(
    trace: StepTrace, gains: list[int], storages: Iterable[TraceStorage], batch: int, more: int
) -> tuple[Line, ...]:
    """The lines of all moments that are the largest at some batch from 1 on."""
    there, gained = _there(trace, gains, storages)
    return _envelope(zip((there - batch * gained + more).tolist(), gained.tolist(), strict=True))


def _there(trace: StepTrace, gains: list[int], storages: Iterable[TraceStorage]) -> NDArray[np.int64]:
    """Bytes at each moment, and what a sample adds to them: (2, moments)."""
    change = np.zeros((2, trace.length + 1), dtype=np.int64)
    for storage in storages:
        growth = np.array((storage.nbytes, gains[storage.number]))
        change[:, max(storage.birth, 0)] += growth
        change[:, max(storage.keep_end, 0)] -= growth
    return np.cumsum(change[:, :-1], axis=1)


def _envelope(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Those of some lines that are the largest somewhere from 1 on, by slope.

    Example:
        >>> _envelope([(100, 1), (0, 2), (0, 1), (10, 51)])
        ((100, 1), (10, 51))
    """
    kept: list[Line] = []
    for fixed, slope in sorted(set(lines), key=lambda line: (line[1], line[0])):
        if kept and kept[-1][1] == slope:
            kept.pop()
        while kept and (_crossing(kept[-1], (fixed, slope)) <= 1 or _never_largest(kept, (fixed, slope))):
            kept.pop()
        kept.append((fixed, slope))
    return tuple(kept)


def _never_largest(kept: list[Line], line: Line) -> bool:
    """Whether the last of the kept lines is nowhere above both its neighbours."""
    return len(kept) > 1 and _crossing(kept[-2], line) <= _crossing(kept[-2], kept[-1])


def _crossing(low: Line, high: Line) -> float:
    """Where the steeper line overtakes the other."""
    return (low[0] - high[0]) / (high[1] - low[1])


def largest(lines: Iterable[Line], batch: int) -> int:
    """The largest of some lines at a batch [bytes].

    Example:
        >>> largest([(100, 1), (10, 5)], 100)
        510
    """
    return max((fixed + per_sample * batch for fixed, per_sample in lines), default=0)
