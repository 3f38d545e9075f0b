"""The clock of a step under a memory plan: one lane of operations, one of copies to the host, one of copies back.

    compute   op op OFF op op  DEL····wait····  op    op  PRE op  unpack··wait··  op
    d2h             |============== copy ====|
    h2d                                                   |======= copy ========|

Copies of a lane run one after the other, in the order of their steps and no earlier than these. DEL waits for the end
of the copy to the host; an unpack, or a recompute that reads the storage, waits for the end of the copy back. Live
bytes need no clock: `live_bytes` gives them.

When each storage is on the device under a memory plan, and whether the plan is legal.

    KEEP        [birth ............................................. keep_end)
    OFFLOAD     [birth ... max(outside_end, DEL))      [PRE ........ last use)
    RECOMPUTE   [birth ... max(outside_end, DEL))      [RE ......... last use)

Last use is the end of the last unpack's window, or one moment after the last recompute that reads the storage,
whichever is later. A window of an unpack that was served before the DEL prolongs the first life. What holds a storage
outside of autograd holds its first life only: what comes back is a new storage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import InputError
from trimaran.base.timeline import COMPUTE, Span, Timeline
from trimaran.graph.trace.live_bytes import scratch_bytes, sum_of_lives
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp, TraceStorage
from trimaran.pricing.offload_costs import MemoryCosts
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep, RecomputeRecipe
from trimaran.program.types import Kind

# ---------------------------------------------------------------------------------------------------------------------
# When each storage is on the device, and whether the plan is legal


_NEEDED = {
    Decision.OFFLOAD: (Kind.OFFLOAD, Kind.RELEASE, Kind.PREFETCH),
    Decision.RECOMPUTE: (Kind.RELEASE, Kind.RECOMPUTE),
}
_OUTSIDE = frozenset({Role.PARAMETER, Role.BUFFER, Role.INPUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """Lives that a plan changes.

    Attributes:
        first: by moved storage, its first life: `[birth, end)` as moments
        second: by moved storage, its second life
        kept: by kept storage that a recipe reads, its prolonged end
    """

    first: Mapping[int, tuple[int, int]]
    second: Mapping[int, tuple[int, int]]
    kept: Mapping[int, int]


def lives(trace: StepTrace, plan: MemoryPlan) -> Lives:
    """Lives of the storages that a plan moves or reads.

    Args:
        trace: the step
        plan: what happens to its storages

    Raises:
        InputError: the plan is not legal for the trace
    """
    at = _steps_by_storage(trace, plan)
    read = _last_reads(trace, plan, at)
    first, second = {}, {}
    for number in plan.moved:
        storage, mine = trace.storages[number], at[number]
        gone, back = mine[Kind.RELEASE][1], mine[_return(plan, number)][1]
        _check_uses(plan, storage, gone, back)
        served = [window_end(trace, moment) for moment in storage.unpacks if moment < gone]
        end = max([window_end(trace, moment) for moment in storage.unpacks], default=back)
        first[number] = (storage.birth, max([storage.outside_end, gone, *served]))
        second[number] = (back, max(end, back + 1, read.get(number, -1) + 1))
    kept = {
        number: max(trace.storages[number].keep_end, moment + 1)
        for number, moment in read.items()
        if number not in second
    }
    return Lives(first=first, second=second, kept=kept)


def window_end(trace: StepTrace, moment: int) -> int:
    """Until when a storage that is unpacked at a moment is in use."""
    event = trace.events[moment]
    return event.end if isinstance(event, Tick) else moment + 1


def _return(plan: MemoryPlan, number: int) -> Kind:
    return Kind.PREFETCH if plan.of(number) == Decision.OFFLOAD else Kind.RECOMPUTE


_Places = dict[int, dict[Kind, tuple[int, int]]]


def _steps_by_storage(trace: StepTrace, plan: MemoryPlan) -> _Places:
    """For each moved storage, where its steps are: (place in the list, moment)."""
    at: _Places = {number: {} for number in plan.moved}
    last = -1
    for place, step in enumerate(plan.steps):
        if not (0 <= step.moment < trace.length and isinstance(trace.events[step.moment], Tick)):
            raise _wrong(
                step,
                f"moment {step.moment} is no tick of the trace",
                "steps happen at packs and unpacks",
                code="memory-step.no-tick",
            )
        if step.moment < last:
            raise _wrong(
                step,
                f"it comes after a step at moment {last}",
                "order the steps by moment",
                code="memory-step.not-in-order",
            )
        last = step.moment
        mine = at.get(step.storage)
        if mine is None or step.kind not in _NEEDED[plan.of(step.storage)]:
            decision = plan.of(step.storage)
            raise _wrong(
                step,
                f"the decision for storage {step.storage} is {decision}",
                "leave the step out",
                code="memory-step.not-decided",
            )
        if step.kind in mine:
            raise _wrong(
                step, "the storage has such a step already", "one of each kind is enough", code="memory-step.twice"
            )
        mine[step.kind] = (place, step.moment)
    for number, mine in at.items():
        _check_order(trace, plan, number, mine)
    return at


def _check_order(trace: StepTrace, plan: MemoryPlan, number: int, mine: Mapping[Kind, tuple[int, int]]) -> None:
    decision = plan.of(number)
    if not 0 <= number < len(trace.storages):
        raise InputError(f"plan {plan.policy}: there is no storage {number} in the trace", storage=number)
    storage = trace.storages[number]
    if not storage.movable:
        raise InputError(
            f"plan {plan.policy}: storage {number} ({storage.role}, {storage.nbytes} bytes) cannot be moved: "
            f"only activations and inputs that are packed at one version and unpacked can; keep it",
            code="memory-step.must-stay",
            storage=number,
        )
    needed = _NEEDED[decision]
    missing = [kind for kind in needed if kind not in mine]
    if missing:
        raise InputError(
            f"plan {plan.policy}: storage {number} is to {decision}, but has no {', '.join(missing)} step",
            code="memory-step.missing",
            storage=number,
        )
    for earlier, later in pairwise(needed):
        if mine[earlier][0] > mine[later][0]:
            raise InputError(
                f"plan {plan.policy}: {later} of storage {number} (moment {mine[later][1]}) comes before its "
                f"{earlier} (moment {mine[earlier][1]}): {' then '.join(needed)} is the order",
                code="memory-step.wrong-order",
                storage=number,
            )
    if mine[needed[0]][1] < storage.packs[-1]:
        raise InputError(
            f"plan {plan.policy}: {needed[0]} of storage {number} at moment {mine[needed[0]][1]} is before its last "
            f"pack at {storage.packs[-1]}: it may still be written; do it there or later",
            code="memory-step.before-last-write",
            storage=number,
        )


def _check_uses(plan: MemoryPlan, storage: TraceStorage, gone: int, back: int) -> None:
    for moment in storage.unpacks:
        if gone <= moment < back:
            raise InputError(
                f"plan {plan.policy}: storage {storage.number} is unpacked at moment {moment}, between its DEL at "
                f"{gone} and its return at {back}: bring it back at {moment} or before",
                code="memory-step.absent-when-needed",
                storage=storage.number,
                moment=moment,
            )


def _last_reads(trace: StepTrace, plan: MemoryPlan, at: _Places) -> dict[int, int]:
    """For each storage that we hold and recipes read, the moment of the last recompute that reads it."""
    read: dict[int, int] = {}
    for place, step in enumerate(plan.steps):
        if step.kind != Kind.RECOMPUTE:
            continue
        recipe = plan.recipes.get(step.storage)
        if recipe is None or recipe.storage != step.storage or not recipe.ops:
            raise _wrong(
                step,
                f"storage {step.storage} has no recipe",
                "give MemoryPlan.recipes one",
                code="memory-step.no-recipe",
            )
        if max(recipe.ops) >= step.moment or min(recipe.ops) < 0:
            raise _wrong(
                step,
                f"its recipe has operations at {recipe.ops}",
                "they must lie before the step",
                code="memory-step.recipe-too-late",
            )
        for source in recipe.sources:
            _check_source(trace, plan, at, place, step, source)
            early = source in at and place < at[source][Kind.RELEASE][0]
            if trace.storages[source].movable and not early:
                read[source] = max(read.get(source, -1), step.moment)
    return read


def _check_source(trace: StepTrace, plan: MemoryPlan, at: _Places, place: int, step: MemoryStep, source: int) -> None:
    storage = trace.storages[source]
    if source in at:
        mine = at[source]
        if mine[Kind.RELEASE][0] < place < mine[_return(plan, source)][0]:
            raise _wrong(
                step,
                f"its recipe reads storage {source}, which is away from moment {mine[Kind.RELEASE][1]} "
                f"to {mine[_return(plan, source)][1]}",
                "bring the source back first",
                code="memory-step.source-away",
            )
        return
    held = storage.movable and storage.packs[0] <= step.moment
    outside = storage.role in _OUTSIDE and storage.birth < step.moment < storage.outside_end
    if not held and not outside:
        raise _wrong(
            step,
            f"its recipe reads storage {source}, which nothing holds by then",
            "choose another recipe",
            code="memory-step.source-not-held",
        )


def _wrong(step: MemoryStep, what: str, remedy: str, *, code: str) -> InputError:
    return InputError(f"step {step.token}: {what}; {remedy}", code=code, step=step.token)


# ---------------------------------------------------------------------------------------------------------------------
# Live bytes of a step at each moment, under a memory plan. No clock has a part in it


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


def host_peak(trace: StepTrace, plan: MemoryPlan) -> int:
    """Most bytes on the host at once [bytes]: of each offloaded storage from its OFF to its first use after its PRE.

    Args:
        trace: the step
        plan: what happens to its storages
    """
    changes: list[tuple[int, int, int]] = []
    for step in plan.steps:
        nbytes = trace.storages[step.storage].copy_bytes
        if step.kind == Kind.OFFLOAD:
            changes.append((step.moment, 1, nbytes))
        elif step.kind == Kind.PREFETCH:
            uses = (moment for moment in trace.storages[step.storage].unpacks if moment >= step.moment)
            changes.append((next(uses, step.moment), 0, -nbytes))
    there = most = 0
    for _, _, nbytes in sorted(changes):
        there += nbytes
        most = max(most, there)
    return most


def recipe_moments(trace: StepTrace, recipe: RecomputeRecipe) -> Iterator[tuple[list[int], int, list[int]]]:
    """What a recipe does to memory, operation by operation.

    Other results than the one that it is for are freed after its last operation that touches them.

    Yields:
        The storages that the operation makes, its scratch memory [bytes], and the storages that are freed after it.
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
    for moment in recipe.ops:
        op = trace.events[moment]
        born = [number for number in dict.fromkeys(writes[moment]) if number not in there]
        there.update(born)
        over = [number for number in there if touched[number] == moment and number != recipe.storage]
        there.difference_update(over)
        yield born, op.scratch_bytes if isinstance(op, TraceOp) else 0, over


def recipe_peak(trace: StepTrace, recipe: RecomputeRecipe) -> int:
    """Most bytes that a recipe has made and not yet freed at a time, what it is for included [bytes]."""
    live = peak = 0
    for born, scratch, over in recipe_moments(trace, recipe):
        live += sum(trace.storages[number].nbytes for number in born)
        peak = max(peak, live + scratch)
        live -= sum(trace.storages[number].nbytes for number in over)
    return peak


def _made_by(trace: StepTrace, moment: int) -> list[int]:
    op = trace.events[moment]
    if not isinstance(op, TraceOp):
        return []
    return [number for number, _ in op.writes if trace.storages[number].role != Role.BUFFER]


def _settled(trace: StepTrace, changed: Lives) -> NDArray[np.int64]:
    """Live bytes when all steps of each tick are done."""
    spans: list[tuple[int, int, int]] = []
    for storage in trace.storages:
        number, nbytes = storage.number, storage.nbytes
        if number in changed.second:
            spans += [(*changed.first[number], nbytes), (*changed.second[number], nbytes)]
        else:
            spans.append((storage.birth, changed.kept.get(number, storage.keep_end), nbytes))
    return sum_of_lives(trace, spans)


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


# ---------------------------------------------------------------------------------------------------------------------
# A step under a memory plan, as simulated: when it ends, who waited for which copy, what ran when


TO_HOST = "d2h"
TO_DEVICE = "h2d"

_COPIES = {Kind.OFFLOAD: TO_HOST, Kind.PREFETCH: TO_DEVICE}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCopy:
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
    copies: tuple[SimulatedCopy, ...]
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


def _copy_span(copy: SimulatedCopy) -> Span:
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
        self.copies: list[SimulatedCopy] = []
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
        codec = self.costs.codec
        if step.storage in self.plan.codecs and codec is not None:
            seconds = self.costs.copy_latency_s + codec.seconds(step.storage, nbytes, bytes_per_s)
        # A copy back needs the one to the host: DEL, which comes between them, has waited for that one.
        start_s, end_s = self.clock.copy(_COPIES[step.kind], step.moment, seconds)
        self.copies.append(SimulatedCopy(step=step, start_s=start_s, end_s=end_s, nbytes=nbytes))
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
