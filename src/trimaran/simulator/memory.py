"""The clock of a step under a memory plan: one lane of operations, one of copies to the host, one of copies back.

    compute   op op OFF op op  DEL····wait····  op    op  PRE op  unpack··wait··  op
    d2h             |============== copy ====|
    h2d                                                   |======= copy ========|

Copies of a lane run one after the other, in the order of their steps and no earlier than these. DEL waits for the end
of the copy to the host; an unpack, or a recompute that reads the storage, waits for the end of the copy back. How much
memory is used has no part in it: `live_bytes` says that, and needs no clock.
"""

from collections.abc import Sequence

import numpy as np

from trimaran.costs.memory_costs import MemoryCosts
from trimaran.errors import InputError
from trimaran.graph.trace.types import StepTrace
from trimaran.program.memory import MemoryPlan, MemoryStep
from trimaran.program.types import Kind
from trimaran.simulator.memory_live import LiveBytes, live_bytes, recipe_peak
from trimaran.simulator.memory_lives import check_recipe, lives
from trimaran.simulator.memory_run import TO_DEVICE, TO_HOST, Copy, MemoryRun

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
    clock = _Clock(trace, plan, costs)
    returned = clock.returned
    for moment, step in _actions(trace, plan):
        if isinstance(step, MemoryStep):
            clock.do(step)
        else:
            clock.wait(moment, returned[step])
    return clock.run()


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


class _Clock:
    """Time of the three lanes, moved on action by action."""

    def __init__(self, trace: StepTrace, plan: MemoryPlan, costs: MemoryCosts) -> None:
        self.storages = trace.storages
        self.plan = plan
        self.costs = costs
        self.elapsed: list[float] = np.concatenate(([0.0], np.cumsum(costs.durations_s))).tolist()
        self.shift_s = 0.0
        self.free_s = {Kind.OFFLOAD: 0.0, Kind.PREFETCH: 0.0}
        self.away: dict[int, tuple[MemoryStep, float]] = {}
        self.returned: dict[int, tuple[MemoryStep, float]] = {}
        self.stalls: dict[MemoryStep, float] = {}
        self.copies: list[Copy] = []
        self.recomputes: list[tuple[MemoryStep, float, float]] = []
        self.shifts: list[tuple[int, float]] = [(0, 0.0)] if trace.length else []

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
        late_s = end_s - (self.elapsed[moment] + self.shift_s)
        if late_s > 0:
            self.stalls[step] = self.stalls.get(step, 0.0) + late_s
            self._shift(moment, late_s)

    def run(self) -> MemoryRun:
        """What came of it."""
        end_s = self.elapsed[-1] + self.shift_s
        recompute_s = sum((end - start for _, start, end in self.recomputes), 0.0)
        moved = {
            kind: sum(copy.nbytes for copy in self.copies if copy.step.kind == kind)
            for kind in (Kind.OFFLOAD, Kind.PREFETCH)
        }
        return MemoryRun(
            step_time_s=max([end_s, *self.free_s.values()]),
            compute_s=self.elapsed[-1],
            recompute_s=recompute_s,
            stalls=self.stalls,
            to_host_bytes=moved[Kind.OFFLOAD],
            to_device_bytes=moved[Kind.PREFETCH],
            copies=tuple(sorted(self.copies, key=lambda copy: copy.start_s)),
            recomputes=tuple(self.recomputes),
            shifts=tuple(self.shifts),
            durations_s=self.costs.durations_s,
        )

    def _copy(self, step: MemoryStep, bytes_per_s: float) -> float:
        nbytes = self.storages[step.storage].copy_bytes
        start_s = max(self.free_s[step.kind], self.elapsed[step.moment] + self.shift_s)
        # A copy back needs the one to the host: DEL, which comes between them, has waited for that one.
        end_s = start_s + self.costs.copy_latency_s + nbytes / bytes_per_s
        self.free_s[step.kind] = end_s
        self.copies.append(Copy(step=step, start_s=start_s, end_s=end_s, nbytes=nbytes))
        return end_s

    def _recompute(self, step: MemoryStep) -> None:
        recipe = self.plan.recipes[step.storage]
        for source in recipe.sources:
            if source in self.returned:
                self.wait(step.moment, self.returned[source])
        start_s = self.elapsed[step.moment] + self.shift_s
        self.recomputes.append((step, start_s, start_s + recipe.duration_s))
        self._shift(step.moment, recipe.duration_s)

    def _shift(self, moment: int, seconds: float) -> None:
        self.shift_s += seconds
        if self.shifts[-1][0] == moment:
            self.shifts[-1] = (moment, self.shift_s)
        else:
            self.shifts.append((moment, self.shift_s))
