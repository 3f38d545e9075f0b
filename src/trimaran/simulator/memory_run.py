"""A step under a memory plan, as simulated: when it ends, who waited for which copy, what ran when."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trimaran.program.memory import MemoryStep
from trimaran.program.types import Kind
from trimaran.timeline import COMPUTE, Span, Timeline

TO_HOST = "d2h"
TO_DEVICE = "h2d"

_COPIES = {Kind.OFFLOAD: TO_HOST, Kind.PREFETCH: TO_DEVICE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One copy.

    Attributes:
        step: the step that started it
        start_s: start [s]
        end_s: end [s]
        nbytes: bytes copied [bytes]
    """

    step: MemoryStep
    start_s: float
    end_s: float
    nbytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryRun:
    """A step under a memory plan, as simulated.

    Attributes:
        step_time_s: from the first operation to the end of the last operation or copy [s]
        compute_s: time of the operations, without recomputing [s]
        recompute_s: time of recomputing [s]
        stalls: by step, how long the operations waited for its copy [s]; steps that nobody waited for are not there
        to_host_bytes: copied to the host [bytes]
        to_device_bytes: copied back [bytes]
        copies: every copy, in order of its start
        recomputes: (step, start [s], end [s]) of each recompute
        shifts: (moment, s): from this moment on, operations are that much later than without a plan
        durations_s: of each moment [s]
    """

    step_time_s: float
    compute_s: float
    recompute_s: float
    stalls: Mapping[MemoryStep, float]
    to_host_bytes: int
    to_device_bytes: int
    copies: tuple[Copy, ...]
    recomputes: tuple[tuple[MemoryStep, float, float], ...]
    shifts: tuple[tuple[int, float], ...]
    durations_s: NDArray[np.float64]

    @property
    def stall_s(self) -> float:
        """Time in which the operations waited for copies [s]."""
        return sum(self.stalls.values(), 0.0)

    @property
    def slowdown(self) -> float:
        """How much longer than without a plan: 0.02 is 2 %."""
        return self.step_time_s / self.compute_s - 1.0 if self.compute_s > 0 else 0.0

    @cached_property
    def starts_s(self) -> NDArray[np.float64]:
        """When each moment begins, its steps and waits done [s]."""
        starts_s = np.concatenate(([0.0], np.cumsum(self.durations_s)[:-1])) if len(self.durations_s) else np.zeros(0)
        bounds = [moment for moment, _ in self.shifts]
        for (moment, shift_s), end in zip(self.shifts, [*bounds[1:], len(starts_s)], strict=True):
            starts_s[moment:end] += shift_s
        return starts_s

    @cached_property
    def timeline(self) -> Timeline:
        """Spans on the lanes compute, d2h and h2d. Operations that follow each other without a wait are one span."""
        spans = [_copy_span(copy) for copy in self.copies]
        spans += [
            Span(rank=0, stream=COMPUTE, start_s=start_s, end_s=end_s, instruction=step.token)
            for step, start_s, end_s in self.recomputes
        ]
        bounds = [moment for moment, _ in self.shifts]
        for first, end in zip(bounds, [*bounds[1:], len(self.durations_s)], strict=True):
            if self.durations_s[first:end].any():
                start_s, last = float(self.starts_s[first]), end - 1
                end_s = float(self.starts_s[last] + self.durations_s[last])
                name = f"{first}-{last}"
                spans.append(Span(rank=0, stream=COMPUTE, start_s=start_s, end_s=end_s, instruction=name))
        return Timeline(spans)


def _copy_span(copy: Copy) -> Span:
    return Span(
        rank=0,
        stream=_COPIES[copy.step.kind],
        start_s=copy.start_s,
        end_s=copy.end_s,
        instruction=copy.step.token,
        nbytes=copy.nbytes,
    )
