"""When each storage is on the device under a memory plan, and whether the plan is legal.

    KEEP        [birth ............................................. keep_end)
    OFFLOAD     [birth ... max(outside_end, DEL))      [PRE ........ last use)
    RECOMPUTE   [birth ... max(outside_end, DEL))      [RE ......... last use)

Last use is the end of the last unpack's window, or one moment after the last recompute that reads the storage,
whichever is later. A window of an unpack that was served before the DEL prolongs the first life. What holds a storage
outside of autograd holds its first life only: what comes back is a new storage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import InputError
from trimaran.graph.trace.live_bytes import scratch_bytes, sum_of_lives
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp, TraceStorage
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep, Recipe
from trimaran.program.types import Kind

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
        _check_uses(trace, plan, storage, gone, back)
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


def _check_uses(trace: StepTrace, plan: MemoryPlan, storage: TraceStorage, gone: int, back: int) -> None:
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


def check_recipe(trace: StepTrace, recipe: Recipe) -> None:
    """See that a recipe makes its storage from what it says it reads.

    Raises:
        InputError: an operation is missing, cannot be repeated, or changes a source
    """
    made: dict[int, int] = {}
    for moment in recipe.ops:
        op = trace.events[moment]
        if isinstance(op, Tick) or not op.repeatable:
            raise InputError(f"recipe of storage {recipe.storage}: moment {moment} cannot be repeated", moment=moment)
        statistics = {number for number, _ in op.writes if trace.storages[number].role == Role.BUFFER}
        for number, version in op.reads:
            if number not in statistics and number not in recipe.sources and made.get(number) != version:
                raise InputError(
                    f"recipe of storage {recipe.storage}: {op.name} at {moment} reads version {version} of storage "
                    f"{number}, which is neither a source nor made by then",
                    moment=moment,
                )
        for number, version in op.writes:
            if number in statistics:
                continue
            if number in recipe.sources:
                raise InputError(
                    f"recipe of storage {recipe.storage}: {op.name} changes source {number}", moment=moment
                )
            made[number] = version
    if made.get(recipe.storage) != trace.storages[recipe.storage].version:
        raise InputError(f"the recipe of storage {recipe.storage} does not make its packed version")


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


def recipe_peak(trace: StepTrace, recipe: Recipe) -> int:
    """Most bytes that a recipe has made and not yet freed at a time, what it is for included [bytes].

    Other results of the recipe are freed after its last operation that touches them.
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
