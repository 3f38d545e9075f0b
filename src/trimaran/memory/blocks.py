"""Whether a memory plan fits the blocks in which PyTorch's allocator hands memory out, not only its bytes.

Live bytes can keep to a budget while no free block is large enough for the next storage. The allocator then waits for
the device, gives its free blocks back and asks again, in each step anew; a convolution that finds no room for its
workspace takes another algorithm. A step is replayed on the model of the allocator, and planned in less until that
does not happen:

    room       |====================================| what the allocator may reserve
    budget     |=================================|    what was asked for
    planned    |============================|         in which the replay gives no blocks back
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trimaran.base.errors import InfeasibleError
from trimaran.graph.trace.types import StepTrace, TraceOp
from trimaran.memory.search import MemoryOutcome
from trimaran.program.memory import MemoryPlan, MemoryStep, RecomputeRecipe
from trimaran.program.types import Kind
from trimaran.simulator.allocator import Allocator, Settings
from trimaran.simulator.memory import lives, recipe_moments

_STEPS: Final = 4
_STEADY: Final = 2  # what the first steps give back is of their start
_MOST_PLANS: Final = 6
_LEAST_LESS: Final = 0.02
"""A further plan is made in so much less of the budget, at least [1]."""

RETURN_S: Final = 0.016
"""A step takes so much longer each time that blocks go back. From benchmarks/results/memory.json: VGG-16 in bf16 on an
H200 took 30 ms longer than planned, with 1.9 returns in a step [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorRoom:
    """What the allocator of a process has.

    Attributes:
        nbytes: most that it may reserve [bytes]
        settings: of the environment
        outside_bytes: taken all the time by what is no part of the step [bytes]
    """

    nbytes: int
    settings: Settings
    outside_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFit:
    """A step in blocks.

    Attributes:
        returns: how often in a step free blocks go back to the device for want of room
        failures: storages for which there is no room even then, over the whole replay; a workspace is not counted, as
            a library goes on without
        reserved_bytes: most that would be reserved if there were no end to the room [bytes]
    """

    returns: int
    failures: int
    reserved_bytes: int


def fit_blocks(trace: StepTrace, plan: MemoryPlan, room: AllocatorRoom) -> BlockFit:
    """Replay a step under a plan, a few times in a row, as the blocks of one are the start of the next.

    Args:
        trace: the step
        plan: what happens to its storages
        room: what the allocator has
    """
    before, during = _calls(trace, plan)
    free = _replay(before, during, room, None)
    if free.reserved_bytes <= room.nbytes:
        return free
    held = _replay(before, during, room, room.nbytes)
    return BlockFit(returns=held.returns, failures=held.failures, reserved_bytes=free.reserved_bytes)


def plan_blocks(
    plan: Callable[[int], MemoryOutcome], trace: StepTrace, room: AllocatorRoom, budget_bytes: int
) -> tuple[MemoryOutcome, BlockFit]:
    """The plan with the shortest step, counting what it costs to give blocks back; one without failures comes first.

    Args:
        plan: makes one for a budget [bytes]
        trace: the step
        room: what the allocator has
        budget_bytes: that no plan may exceed [bytes]

    Returns:
        The plan, and how it fits.

    Raises:
        InfeasibleError: there is no plan for the whole budget
    """
    outcome = plan(budget_bytes)
    fit = fit_blocks(trace, outcome.plan, room)
    tried = [(outcome, fit)]
    for _ in range(_MOST_PLANS - 1):
        if not fit.returns and not fit.failures:
            break
        short_bytes = min(fit.reserved_bytes - room.nbytes, budget_bytes // 10)
        try:
            outcome = plan(outcome.budget_bytes - max(short_bytes, int(_LEAST_LESS * budget_bytes)))
        except InfeasibleError:
            break
        fit = fit_blocks(trace, outcome.plan, room)
        tried.append((outcome, fit))
    return min(tried, key=lambda one: (one[1].failures > 0, one[0].run.step_time_s + one[1].returns * RETURN_S))


_Call = tuple[int, int]
"""Number of a block and its bytes; 0 bytes: it is given back."""

_SCRATCH: Final = -1
_OUTSIDE: Final = -2


def _calls(trace: StepTrace, plan: MemoryPlan) -> tuple[list[_Call], list[_Call]]:
    """What is taken before the first step, and what is taken and given back in each, in order."""
    changed = lives(trace, plan)
    born: dict[int, list[_Call]] = {}
    died: dict[int, list[_Call]] = {}

    def live(block: int, birth: int, end: int, nbytes: int) -> None:
        if nbytes:
            born.setdefault(birth, []).append((block, nbytes))
            died.setdefault(end, []).append((block, 0))

    count = len(trace.storages)
    for storage in trace.storages:
        number = storage.number
        if number in changed.second:
            live(number, *changed.first[number], storage.nbytes)
            died.setdefault(changed.second[number][1], []).append((count + number, 0))
        else:
            live(number, storage.birth, changed.kept.get(number, storage.keep_end), storage.nbytes)
    steps: dict[int, list[MemoryStep]] = {}
    for step in plan.steps:
        steps.setdefault(step.moment, []).append(step)
    before = [call for moment, calls in born.items() if moment < 0 for call in calls]
    during: list[_Call] = []
    for moment in range(trace.length + 1):
        during += died.get(moment, ())
        for step in steps.get(moment, ()):
            block = (count + step.storage, trace.storages[step.storage].nbytes)
            if step.kind == Kind.RECOMPUTE:
                during += _recomputed(trace, plan.recipes[step.storage], block)
            elif step.kind == Kind.PREFETCH:
                during.append(block)
        during += born.get(moment, ())
        event = trace.events[moment] if moment < trace.length else None
        if isinstance(event, TraceOp) and event.scratch_bytes:
            during += [(_SCRATCH, event.scratch_bytes), (_SCRATCH, 0)]
    there = {block for block, _ in before}
    during += [(block, 0) for block, nbytes in dict(during).items() if nbytes and block not in there]
    return before, during


def _recomputed(trace: StepTrace, recipe: RecomputeRecipe, result: _Call) -> list[_Call]:
    """What a recipe takes, and gives back except its result."""
    first, calls = 2 * len(trace.storages), list[_Call]()
    for born, scratch_bytes, over in recipe_moments(trace, recipe):
        calls += [
            result if number == recipe.storage else (first + number, trace.storages[number].nbytes) for number in born
        ]
        if scratch_bytes:
            calls += [(_SCRATCH, scratch_bytes), (_SCRATCH, 0)]
        calls += [(first + number, 0) for number in over]
    return calls


def _replay(before: list[_Call], during: list[_Call], room: AllocatorRoom, nbytes: int | None) -> BlockFit:
    allocator = Allocator(nbytes, room.settings)
    failures = 0

    def take(block: int, nbytes: int) -> None:
        nonlocal failures
        failures += not allocator.take(block, nbytes, 0) and block != _SCRATCH

    take(_OUTSIDE, room.outside_bytes)
    for call in before:
        take(*call)
    returns = 0
    for step in range(_STEPS):
        if step == _STEADY:
            returns = allocator.retries
        there = {block for block, _ in before}
        for block, size in during:
            if size and block not in there:
                take(block, size)
                there.add(block)
            elif not size and block in there:
                allocator.give(block)
                there.discard(block)
        for block, size in before:
            if block not in there:
                take(block, size)
    returned = allocator.retries - returns
    return BlockFit(
        returns=-(-returned // (_STEPS - _STEADY)), failures=failures, reserved_bytes=allocator.peak_reserved
    )
