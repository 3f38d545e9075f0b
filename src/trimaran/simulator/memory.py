"""The clock of a step under a memory plan: one lane of operations, one of copies to the host, one of copies back.

    compute   op op OFF op op  DEL····wait····  op    op  PRE op  unpack··wait··  op
    d2h             |============== copy ====|
    h2d                                                   |======= copy ========|

Copies of a lane run one after the other, in the order of their steps and no earlier than these. DEL waits for the end
of the copy to the host; an unpack, or a recompute that reads the storage, waits for the end of the copy back. Live
bytes need no clock: `live_bytes` gives them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import InputError
from trimaran.base.timeline import COMPUTE, Span, Timeline
from trimaran.graph.trace.types import StepTrace
from trimaran.pricing.offload_costs import MemoryCosts
from trimaran.program.memory import MemoryPlan, MemoryStep
from trimaran.program.types import Kind
from trimaran.simulator.storage_lifetimes import LiveBytes, check_recipe, live_bytes, lives, recipe_peak

__all__ = [
    "TO_DEVICE",
    "TO_HOST",
    "LiveBytes",
    "MemoryRun",
    "check_recipe",
    "live_bytes",
    "recipe_peak",
    "simulate_memory",
]


# ---------------------------------------------------------------------------------------------------------------------
# A step under a memory plan, as simulated: when it ends, who waited for which copy, what ran when


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
        stalls: by step, how long the operations waited for its copy [s]; steps without a wait are left out
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


def simulate_memory(trace: StepTrace, plan: MemoryPlan, costs: MemoryCosts) -> MemoryRun:
    """Simulate a step under a memory plan.

    Args:
        trace: the step
        plan: what happens to its storages
        costs: durations of its operations and of copies

    Raises:
        InputError: the plan is not legal for the trace, or the costs are of another trace
    """
    if len(costs.durations_s) != trace.length:
        raise InputError(
            f"the costs have {len(costs.durations_s)} durations, the trace {trace.length} moments: "
            f"price the trace that is simulated",
            code="memory-simulation.other-trace",
        )
    lives(trace, plan)
    simulation = _Simulation(trace, plan, costs)
    for moment, step in _actions(trace, plan):
        if isinstance(step, MemoryStep):
            simulation.do(step)
        else:
            simulation.wait(moment, simulation.returned[step])
    return simulation.run()


def _actions(trace: StepTrace, plan: MemoryPlan) -> Sequence[tuple[int, MemoryStep | int]]:
    """Steps in order; before those of its tick an early wait; after them the first use of what was copied back."""
    actions: list[tuple[int, int, int, MemoryStep | int]] = [
        (moment, 0, -1, storage) for storage, moment in plan.waits.items()
    ]
    for place, step in enumerate(plan.steps):
        actions.append((step.moment, 0, place, step))
        if step.kind == Kind.PREFETCH:
            use = next((moment for moment in trace.storages[step.storage].unpacks if moment >= step.moment), None)
            if use is not None:
                actions.append((use, 1, place, step.storage))
    actions.sort(key=lambda action: action[:3])
    return [(moment, what) for moment, _, _, what in actions]


class MemoryClock:
    """Time of the operations and of both lanes of copies, moved on by one event after the other.

    Args:
        elapsed_s: for each place of the step, when it begins where nothing waits; then the end of the step [s]
    """

    def __init__(self, elapsed_s: Sequence[float]) -> None:
        self._elapsed_s = elapsed_s
        self._free_s = {TO_HOST: 0.0, TO_DEVICE: 0.0}
        self.later_s = 0.0

    @property
    def end_s(self) -> float:
        """The end of the last operation or copy [s]."""
        return max(self._elapsed_s[-1] + self.later_s, *self._free_s.values())

    def now_s(self, place: int) -> float:
        """When the operations come to a place [s]."""
        return self._elapsed_s[place] + self.later_s

    def copy(self, lane: str, place: int, seconds: float) -> tuple[float, float]:
        """Start a copy at a place, when its lane is free; its start and its end [s, s].

        Args:
            lane: `TO_HOST` or `TO_DEVICE`
            place: no copy starts before the operations come there
            seconds: of the copy [s]
        """
        start_s = max(self._free_s[lane], self.now_s(place))
        end_s = self._free_s[lane] = start_s + seconds
        return start_s, end_s

    def wait(self, place: int, until_s: float) -> float:
        """Let the operations wait at a place until a time; how long they wait [s]."""
        wait_s = until_s - self.now_s(place)
        if wait_s <= 0.0:
            return 0.0
        self.later_s = until_s - self._elapsed_s[place]
        return wait_s

    def insert(self, seconds: float) -> None:
        """Make all later operations later [s]."""
        self.later_s += seconds


class _Simulation:
    """A step under a memory plan, with a record of what happened."""

    def __init__(self, trace: StepTrace, plan: MemoryPlan, costs: MemoryCosts) -> None:
        self.storages = trace.storages
        self.plan = plan
        self.costs = costs
        self.elapsed_s: list[float] = np.concatenate(([0.0], np.cumsum(costs.durations_s))).tolist()
        self.clock = MemoryClock(self.elapsed_s)
        self.away: dict[int, tuple[MemoryStep, float]] = {}
        self.returned: dict[int, tuple[MemoryStep, float]] = {}
        self.stalls: dict[MemoryStep, float] = {}
        self.copies: list[Copy] = []
        self.recomputes: list[tuple[MemoryStep, float, float]] = []
        self.shifts: dict[int, float] = {0: 0.0} if trace.length else {}

    def do(self, step: MemoryStep) -> None:
        """One step of the plan."""
        if step.kind == Kind.OFFLOAD:
            self.away[step.storage] = (step, self._copy(step, self.costs.to_host_bytes_per_s))
        elif step.kind == Kind.PREFETCH:
            self.returned[step.storage] = (step, self._copy(step, self.costs.to_device_bytes_per_s))
        elif step.kind == Kind.RECOMPUTE:
            self._recompute(step)
        elif step.storage in self.away:
            self.wait(step.moment, self.away[step.storage])

    def wait(self, moment: int, copy: tuple[MemoryStep, float]) -> None:
        """The operations wait for a copy."""
        step, end_s = copy
        late_s = self.clock.wait(moment, end_s)
        if late_s > 0:
            self.stalls[step] = self.stalls.get(step, 0.0) + late_s
            self.shifts[moment] = self.clock.later_s

    def run(self) -> MemoryRun:
        """The simulated step."""
        moved = {
            kind: sum(copy.nbytes for copy in self.copies if copy.step.kind == kind)
            for kind in (Kind.OFFLOAD, Kind.PREFETCH)
        }
        return MemoryRun(
            step_time_s=self.clock.end_s,
            compute_s=self.elapsed_s[-1],
            recompute_s=sum((end - start for _, start, end in self.recomputes), 0.0),
            stalls=self.stalls,
            to_host_bytes=moved[Kind.OFFLOAD],
            to_device_bytes=moved[Kind.PREFETCH],
            copies=tuple(sorted(self.copies, key=lambda copy: copy.start_s)),
            recomputes=tuple(self.recomputes),
            shifts=tuple(self.shifts.items()),
            durations_s=self.costs.durations_s,
        )

    def _copy(self, step: MemoryStep, bytes_per_s: float) -> float:
        nbytes = self.storages[step.storage].copy_bytes
        seconds = self.costs.copy_latency_s + nbytes / bytes_per_s
        # A copy back needs the one to the host: DEL, which comes between them, has waited for that one.
        start_s, end_s = self.clock.copy(_COPIES[step.kind], step.moment, seconds)
        self.copies.append(Copy(step=step, start_s=start_s, end_s=end_s, nbytes=nbytes))
        return end_s

    def _recompute(self, step: MemoryStep) -> None:
        recipe = self.plan.recipes[step.storage]
        for source in recipe.sources:
            if source in self.returned:
                self.wait(step.moment, self.returned[source])
        start_s = self.clock.now_s(step.moment)
        self.recomputes.append((step, start_s, start_s + recipe.duration_s))
        self.clock.insert(recipe.duration_s)
        self.shifts[step.moment] = self.clock.later_s
