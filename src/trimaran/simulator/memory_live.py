"""Live bytes of a step at each moment, under a memory plan. No clock has a part in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.graph.trace.liveness import scratch_bytes
from trimaran.graph.trace.types import Role, StepTrace, TraceOp
from trimaran.program.memory import MemoryPlan, MemoryStep, Recipe
from trimaran.program.types import Kind
from trimaran.simulator.memory_lives import Lives, lives


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveBytes:
    """Live bytes over a step.

    Attributes:
        at: largest live bytes within each moment [bytes], int64
        operations: which moments are operations, bool
    """

    at: NDArray[np.int64]
    operations: NDArray[np.bool_]

    @property
    def peak(self) -> int:
        """Largest live bytes [bytes]."""
        return int(self.at.max(initial=0))

    @property
    def moment(self) -> int:
        """First moment of the peak."""
        return int(self.at.argmax()) if len(self.at) else 0

    @property
    def mean(self) -> float:
        """Mean over the operations, each counted once [bytes]."""
        return float(self.at[self.operations].mean()) if self.operations.any() else 0.0

    def mean_over(self, durations_s: NDArray[np.float64]) -> float:
        """Mean over the operations, each counted by its duration [bytes].

        Args:
            durations_s: of each moment [s]
        """
        total_s = float(durations_s.sum())
        return float(self.at @ durations_s) / total_s if total_s > 0 else self.mean


def live_bytes(trace: StepTrace, plan: MemoryPlan) -> LiveBytes:
    """Live bytes at each moment of a step under a plan.

    The steps of a tick run one after the other; what counts at the tick is the largest amount after any of them, or
    while one of them recomputes.

    Args:
        trace: the step
        plan: what happens to its storages

    Raises:
        InputError: the plan is not legal for the trace
    """
    changed = lives(trace, plan)
    after = _settled(trace, changed)
    at = after + scratch_bytes(trace)  # of operations; what happens within a tick comes next
    for moment, steps in _by_moment(plan).items():
        at[moment] = max(at[moment], _within_tick(trace, plan, changed, steps, int(after[moment])))
    operations = np.fromiter((isinstance(event, TraceOp) for event in trace.events), dtype=np.bool_, count=trace.length)
    return LiveBytes(at=at, operations=operations)


def recipe_peak(trace: StepTrace, recipe: Recipe) -> int:
    """Most bytes that a recipe has made and not yet freed at a time, what it is for included [bytes].

    What it makes beside its storage is freed after the last operation of the recipe that touches it.
    """
    touched: dict[int, int] = {}
    writes = {moment: _made_by(trace, moment) for moment in recipe.ops}
    made = {number for numbers in writes.values() for number in numbers}
    for moment in recipe.ops:
        touched.update(dict.fromkeys(writes[moment], moment))
        op = trace.events[moment]
        if isinstance(op, TraceOp):
            touched.update({number: moment for number, _ in op.reads if number in made})
    there: set[int] = set()
    live = peak = 0
    for moment in recipe.ops:
        op = trace.events[moment]
        for number in writes[moment]:
            if number not in there:
                there.add(number)
                live += trace.storages[number].nbytes
        peak = max(peak, live + (op.scratch_bytes if isinstance(op, TraceOp) else 0))
        over = [number for number in there if touched[number] == moment and number != recipe.storage]
        for number in over:
            there.discard(number)
            live -= trace.storages[number].nbytes
    return peak


def _made_by(trace: StepTrace, moment: int) -> list[int]:
    op = trace.events[moment]
    if not isinstance(op, TraceOp):
        return []
    return [number for number, _ in op.writes if trace.storages[number].role != Role.BUFFER]


def _settled(trace: StepTrace, changed: Lives) -> NDArray[np.int64]:
    """Live bytes when all steps of each tick are done."""
    change = np.zeros(trace.length + 1, dtype=np.int64)
    for storage in trace.storages:
        number = storage.number
        spans = [(storage.birth, changed.kept.get(number, storage.keep_end))]
        if number in changed.second:
            spans = [changed.first[number], changed.second[number]]
        for start, end in spans:
            if end > start:
                change[max(start, 0)] += storage.nbytes
                change[min(end, trace.length)] -= storage.nbytes
    return np.cumsum(change[:-1])


def _by_moment(plan: MemoryPlan) -> dict[int, list[MemoryStep]]:
    found: dict[int, list[MemoryStep]] = {}
    for step in plan.steps:
        if step.kind != Kind.OFFLOAD:
            found.setdefault(step.moment, []).append(step)
    return found


def _within_tick(trace: StepTrace, plan: MemoryPlan, changed: Lives, steps: Sequence[MemoryStep], after: int) -> int:
    """The largest amount within a tick, found from its last step backwards."""
    level = most = after
    for step in reversed(steps):
        most = max(most, level)
        nbytes = trace.storages[step.storage].nbytes
        if step.kind == Kind.RELEASE:
            if changed.first[step.storage][1] == step.moment:
                level += nbytes
        else:
            level -= nbytes
            if step.kind == Kind.RECOMPUTE:
                most = max(most, level + recipe_peak(trace, plan.recipes[step.storage]))
    return most
