"""Our arms: the context that a user takes, and single policies run by the same runtime.

What a user takes measures, plans and verifies by itself. For a single policy the same is done here, step by step: a
step is recorded that makes the optimizer's state, then another, which is planned; recipes are verified once.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from benchmarks.memory.card import Limit
from benchmarks.memory.foreign import Runner
from benchmarks.memory.models import Training

import trimaran
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.types import StepTrace
from trimaran.memory.search import plan_memory
from trimaran.memory.vdnn import vdnn_all, vdnn_conv
from trimaran.memory_budget import VirtualMemory
from trimaran.memory_budget.device import LoopDevice
from trimaran.memory_hooks.executor import MemoryExecutor
from trimaran.memory_hooks.residence import MemoryStatistics
from trimaran.pricing.offload_costs import MemoryCosts
from trimaran.program.memory import Decision, MemoryPlan
from trimaran.simulator.memory import live_bytes, simulate_memory

SETTLE = 5
"""Steps until a plan runs: two are recorded, one is verified, and once it may be planned again."""

STEADY = 2
"""Steps in which nothing was planned, before steps are timed."""

PLANNING_S = 15.0


def product(training: Training, limit: Limit) -> Runner:
    """`trimaran.virtual_memory` around the loop, with nothing but the budget."""
    memory = trimaran.virtual_memory(budget=limit.asked_bytes, limit_s=PLANNING_S, smallest=_smallest(training))
    memory.__enter__()
    steady = _Steady(memory)

    def figures() -> dict[str, Any]:
        report = memory.report()
        # The context sets the allocator's peak back at each step, and keeps the largest itself.
        measured = {} if report.measured_peak_bytes is None else {"peak_bytes": report.measured_peak_bytes}
        keep_s, limit_s, planned_s = report.keep_time_s, report.lower_bound_s, report.planned_time_s
        bytes_of = {what: sum(one.nbytes for one in report.decisions if one.decision == what) for what in Decision}
        return measured | {
            "to_host_bytes": report.to_host_bytes,
            "to_device_bytes": report.to_device_bytes,
            "stall_s": report.stall_s,
            "phase": report.phase,
            "steps_on_demand": report.fallback_steps,
            "asked_bytes": limit.asked_bytes,
            "predicted_peak_bytes": report.predicted_peak_bytes,
            "floor_bytes": report.minimum_memory_bytes,
            "offloaded_bytes": bytes_of[Decision.OFFLOAD],
            "recomputed_bytes": bytes_of[Decision.RECOMPUTE],
            "limit_slowdown": limit_s / keep_s - 1 if limit_s and keep_s else None,
            "planned_slowdown": planned_s / keep_s - 1 if planned_s and keep_s else None,
            "operations_s": keep_s,
            "notes": list(report.notes),
        }

    return Runner(
        step=training.step,
        figures=figures,
        close=lambda: memory.__exit__(None, None, None),
        settle=SETTLE,
        settled=steady,
        counted=False,
    )


class _Steady:
    """Whether the plans have run unchanged for some steps."""

    def __init__(self, memory: VirtualMemory) -> None:
        self._memory = memory
        self._last: object = None
        self._same = 0

    def __call__(self) -> bool:
        """Ask after a step."""
        report = self._memory.report()
        plans = report.phase, report.plans, report.recorded_steps, report.predicted_peak_bytes, report.decisions
        self._same = self._same + 1 if plans == self._last else 0
        self._last = plans
        return report.phase in ("run", "keep") and self._same >= STEADY


def policy(training: Training, name: str, limit: Limit) -> Runner:
    """One policy, by the executor."""
    recording = _record(training)
    device = LoopDevice(training.device, None)
    costs = device.costs(recording.trace)
    smallest_bytes = _smallest(training)

    def plan(banned: Collection[int]) -> MemoryPlan:
        return POLICIES[name](recording.trace, costs, limit.asked_bytes, smallest_bytes, banned)

    return _Run(training, recording, device, plan, costs).runner()


class _Run:
    """Steps under a plan, which is made again as long as a recipe does not give the same bits."""

    def __init__(
        self,
        training: Training,
        recording: Recording,
        device: LoopDevice,
        plan: Callable[[Collection[int]], MemoryPlan],
        costs: MemoryCosts,
    ) -> None:
        self._training, self._recording, self._device, self._costs = training, recording, device, costs
        self._make_plan = plan
        self._banned: frozenset[int] = frozenset()
        self._last: MemoryStatistics | None = None
        self._plan_again()

    def runner(self) -> Runner:
        return Runner(
            step=self.step,
            figures=self.figures,
            close=self._device.close,
            settle=SETTLE - 2,
            settled=lambda: not self._verify,
            counted=False,
        )

    def step(self) -> Any:
        training = self._training
        training.optimizer.zero_grad(set_to_none=True)
        self._executor.begin_forward(verify=self._verify)
        with self._executor.hooks():
            loss = training.finish(training.forward())
        self._last = self._executor.finish_step()
        if self._verify:
            self._verify = False
            if self._last.failed_recipes:
                self._banned |= frozenset(self._last.failed_recipes)
                self._plan_again()
        return loss

    def figures(self) -> dict[str, Any]:
        trace, last = self._recording.trace, self._last
        run = simulate_memory(trace, self._plan, self._costs)
        bytes_of = {
            what: sum(trace.storages[number].nbytes for number in self._plan.moved if self._plan.of(number) == what)
            for what in Decision
        }
        return {
            "to_host_bytes": last.to_host_bytes if last else 0,
            "to_device_bytes": last.to_device_bytes if last else 0,
            "stall_s": sum(last.stalls_s.values()) if last else None,
            "steps_on_demand": last.mismatches if last else 0,
            "predicted_peak_bytes": live_bytes(trace, self._plan).peak,
            "offloaded_bytes": bytes_of[Decision.OFFLOAD],
            "recomputed_bytes": bytes_of[Decision.RECOMPUTE],
            "planned_slowdown": run.slowdown,
            "operations_s": self._costs.compute_s,
        }

    def _plan_again(self) -> None:
        self._plan = self._make_plan(self._banned)
        offloaded = [number for number in self._plan.moved if self._plan.of(number) == Decision.OFFLOAD]
        nbytes = sum(self._recording.trace.storages[number].nbytes for number in offloaded)
        self._executor = MemoryExecutor(self._recording, self._plan, self._device.engine, self._device.arena(nbytes))
        self._verify = bool(self._plan.recipes)


def _record(training: Training) -> Recording:
    for _ in range(2):
        with Recorder(training.model) as recorder:
            training.step()
    return recorder.recording


def _smallest(training: Training) -> int:
    # Narrow networks have no storages of the usual size.
    return 256 * 1024 if training.device == "cuda" else 1024


def _planned(
    trace: StepTrace, costs: MemoryCosts, budget: int, smallest: int, banned: Collection[int], **options: Any
) -> MemoryPlan:
    return plan_memory(
        trace, costs, budget_bytes=budget, smallest_bytes=smallest, limit_s=PLANNING_S, banned=banned, **options
    ).plan


POLICIES: dict[str, Callable[[StepTrace, MemoryCosts, int, int, Collection[int]], MemoryPlan]] = {
    "vdnn_all": lambda trace, *_: vdnn_all(trace),
    "vdnn_conv": lambda trace, *_: vdnn_conv(trace),
    "ours_offload": lambda trace, costs, budget, smallest, _: _planned(
        trace, costs, budget, smallest, {storage.number for storage in trace.movable}
    ),
    "ours_recompute": lambda trace, costs, *given: _planned(trace, replace(costs, host_bytes=0), *given),
}
