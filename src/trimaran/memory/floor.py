"""The least memory in which a step can run, and what holds it.

However a plan moves storages, at each moment those must be there that are in use, or that cannot be moved:

    floor = max over moments j of (live_j − sum of the movable storages that may be away at j)

A storage may be away after its last pack, once nothing outside of autograd holds it, until its first unpack after that.

Micro-split: what the floor would be if the operations at the floor ran in parts of the batch.

Where much is needed at once, a run of operations can take the batch in k parts, one after the other. A storage whose
time on the device lies within the run is then needed in parts, and takes a k-th. What was there before the run, or must
be whole after it, stays whole: so does what has nothing to do with the batch.

    needed    ____‾‾‾‾‾‾‾____        run: moments at which more is needed than some level x
    parts     ____-_--_-_____        within it, what lives only there counts b/k

The level is the highest that brings the floor down as far as any level does. Operations that mix the samples of a batch
(batch norm) cannot run in parts: runs that hold one stay as they are. An analysis only: no plan splits operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.units import format_bytes
from trimaran.graph.trace.live_bytes import scratch_bytes
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp, TraceStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What takes part in the floor.

    Attributes:
        storage: its number
        role: what it is to the step
        nbytes: its size [bytes]
        what: name, or role and module
    """

    storage: int
    role: Role
    nbytes: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The least memory in which a step can run.

    Attributes:
        nbytes: the floor [bytes]
        moment: where it is
        operation: name of the operation that runs there, or of the tick
        module: path of the module of that operation
        holders: what holds it, largest first
    """

    nbytes: int
    moment: int
    operation: str
    module: str
    holders: tuple[Holder, ...]

    def describe(self, most: int = 4) -> str:
        """What holds the floor, in one sentence.

        Args:
            most: storages to name
        """
        named = ", ".join(f"{one.what} ({format_bytes(one.nbytes)})" for one in self.holders[:most])
        where = f" in {self.module}" if self.module else ""
        return f"{format_bytes(self.nbytes)} at {self.operation}{where}: {named}"


def away_span(trace: StepTrace, storage: TraceStorage) -> tuple[int, int]:
    """The longest time in which a movable storage may be away, as moments `[first, end)`; empty where it may not.

    Args:
        trace: the step
        storage: a movable one
    """
    last = storage.packs[-1]
    served = [_window(trace, moment) for moment in storage.unpacks if moment < last]
    back = next((moment for moment in storage.unpacks if moment >= last), last)
    return max([storage.outside_end, last, *served]), back


def _window(trace: StepTrace, moment: int) -> int:
    event = trace.events[moment]
    return event.end if isinstance(event, Tick) else moment + 1


def kept_bytes(trace: StepTrace) -> NDArray[np.int64]:
    """Live bytes at each moment when autograd keeps everything [bytes]."""
    change = np.zeros(trace.length + 1, dtype=np.int64)
    for storage in trace.storages:
        if storage.keep_end > storage.birth:
            change[max(storage.birth, 0)] += storage.nbytes
            change[min(storage.keep_end, trace.length)] -= storage.nbytes
    return np.cumsum(change[:-1]) + scratch_bytes(trace)


def needed_bytes(trace: StepTrace, smallest_bytes: int = 0) -> NDArray[np.int64]:
    """Live bytes at each moment when all movable storages are away whenever they may be [bytes].

    Args:
        trace: the step
        smallest_bytes: smaller storages are kept
    """
    change = np.zeros(trace.length + 1, dtype=np.int64)
    for storage in trace.movable:
        first, end = away_span(trace, storage)
        if first < end and storage.nbytes >= smallest_bytes:
            change[first] -= storage.nbytes
            change[end] += storage.nbytes
    return kept_bytes(trace) + np.cumsum(change[:-1])


def floor(trace: StepTrace) -> Floor:
    """The floor of a step, with what holds it.

    Args:
        trace: the step
    """
    needed = needed_bytes(trace)
    if not len(needed):
        return Floor(nbytes=0, moment=0, operation="", module="", holders=())
    moment = int(needed.argmax())
    event = trace.events[moment]
    name, module = (event.name, event.module) if isinstance(event, TraceOp) else (f"{event.kind} {event.index}", "")
    held = sorted((one for one in trace.storages if _holds(trace, one, moment)), key=lambda one: -one.nbytes)
    holders = [Holder(storage=one.number, role=one.role, nbytes=one.nbytes, what=_what(trace, one)) for one in held]
    return Floor(
        nbytes=int(needed[moment]),
        moment=moment,
        operation=name,
        module=module,
        holders=tuple(holders),
    )


def _holds(trace: StepTrace, storage: TraceStorage, moment: int) -> bool:
    if not storage.birth <= moment < storage.keep_end or storage.nbytes == 0:
        return False
    if not storage.movable:
        return True
    first, end = away_span(trace, storage)
    return not first <= moment < end


def _what(trace: StepTrace, storage: TraceStorage) -> str:
    name = trace.names.get(storage.number)
    if name:
        return f"{storage.role} {name}"
    return f"{storage.role} of {storage.module}" if storage.module else f"{storage.role} {storage.number}"


_LEVELS = 64
_MIXING = "batch_norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFloor:
    """The floor when some operations run in parts of the batch.

    Attributes:
        nbytes: the floor [bytes]
        parts: number of parts
        runs: moments `[first, end)` of each run that is split, ascending
        operations: number of operations in them
    """

    nbytes: int
    parts: int
    runs: tuple[tuple[int, int], ...]
    operations: int


def split_floor(trace: StepTrace, parts: int) -> SplitFloor:
    """The floor of a step if the operations at its floor ran in parts of the batch.

    Args:
        trace: the step
        parts: number of parts, at least 2

    Raises:
        InputError: less than 2 parts
    """
    if parts < 2:
        raise InputError(
            f"a batch is split into 2 parts or more, not {parts}", code="memory-plan.too-few-parts", parts=parts
        )
    needed = needed_bytes(trace)
    highest = int(needed.max(initial=0))
    best = SplitFloor(nbytes=highest, parts=parts, runs=(), operations=0)
    stays = _stays(trace)
    mixing = np.array([isinstance(event, TraceOp) and _MIXING in event.name for event in trace.events], dtype=np.bool_)
    for level in np.linspace(highest, 0, _LEVELS, endpoint=False)[1:]:
        runs = [run for run in _runs(needed > level) if not mixing[run[0] : run[1]].any()]
        reduced = needed - _saved(stays, runs, parts, trace.length)
        found = int(reduced.max(initial=0))
        # A little less is not worth splitting more.
        if found < 0.99 * best.nbytes:
            operations = sum(isinstance(event, TraceOp) for start, end in runs for event in trace.events[start:end])
            best = SplitFloor(nbytes=found, parts=parts, runs=tuple(runs), operations=operations)
    return best


def _stays(trace: StepTrace) -> list[tuple[int, int, int]]:
    """(start, end, bytes) of each stretch that an activation must be on the device."""
    stays = []
    for storage in trace.storages:
        if storage.role not in (Role.ACTIVATION, Role.INPUT) or storage.nbytes == 0:
            continue
        pieces = [(storage.birth, storage.keep_end)]
        if storage.movable:
            gone, use = away_span(trace, storage)
            if gone < use:
                ends = [event.end for moment in storage.unpacks if isinstance(event := trace.events[moment], Tick)]
                pieces = [(storage.birth, gone), (use, max(ends))]
        stays += [(start, end, storage.nbytes) for start, end in pieces if start < end]
    return stays


def _runs(above: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], above.astype(np.int8), [0]))))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _saved(
    stays: Sequence[tuple[int, int, int]], runs: Sequence[tuple[int, int]], parts: int, length: int
) -> NDArray[np.int64]:
    """Bytes that need not be there at each moment when the runs are split."""
    change = np.zeros(length + 1, dtype=np.int64)
    starts = np.array([start for start, _ in runs])
    for start, end, nbytes in stays:
        run = int(np.searchsorted(starts, start, side="right")) - 1
        if run >= 0 and end <= runs[run][1]:
            less = nbytes - -(-nbytes // parts)
            change[start] += less
            change[end] -= less
    total: NDArray[np.int64] = np.cumsum(change[:-1])
    return total


# ---------------------------------------------------------------------------------------------------------------------
# Refusals: why a budget cannot be kept, and the ways out with their figures


_PARTS = (2, 4, 8)
_WORTH = 0.01
_STATE = (Role.PARAMETER, Role.BUFFER, Role.GRADIENT, Role.OPTIMIZER)


def below_floor(trace: StepTrace, budget_bytes: int, least: Floor) -> InfeasibleError:
    """The budget is below the floor.

    Args:
        trace: the step
        budget_bytes: peak that was asked for [bytes]
        least: floor of the step
    """
    by_role = {role: sum(one.nbytes for one in least.holders if one.role == role) for role in Role}
    ways = [_smaller(budget_bytes, least, sum(by_role[role] for role in _STATE)), _split(trace, budget_bytes)]
    if by_role[Role.OPTIMIZER] > _WORTH * least.nbytes:  # counters of steps stay behind where the state has gone
        without = least.nbytes - by_role[Role.OPTIMIZER]
        ways.append(f"the optimizer's state on the host (about {format_bytes(without)})")
    return InfeasibleError(
        f"a budget of {format_bytes(budget_bytes)} is below the floor of this step, {least.describe()}. "
        f"Ways out: {'; '.join(way for way in ways if way)}",
        code="memory-plan.below-floor",
        budget_bytes=budget_bytes,
        floor_bytes=least.nbytes,
        moment=least.moment,
    )


def none_found(budget_bytes: int, host_bytes: int | None, least: Floor) -> InfeasibleError:
    """The budget is not below the floor, and still no plan was found.

    Args:
        budget_bytes: peak that was asked for [bytes]
        host_bytes: most that may be offloaded at once [bytes]
        least: floor of the step
    """
    cap = "" if host_bytes is None else f" with at most {format_bytes(host_bytes)} on the host"
    return InfeasibleError(
        f"no plan was found that keeps to {format_bytes(budget_bytes)}{cap}, although the floor is "
        f"{format_bytes(least.nbytes)}. Ways out: more memory on the host; a larger budget; a smaller micro-batch",
        code="memory-plan.not-found",
        budget_bytes=budget_bytes,
        host_bytes=host_bytes,
        floor_bytes=least.nbytes,
    )


def _smaller(budget_bytes: int, least: Floor, state_bytes: int) -> str:
    """What part of the batch fits, if all but parameters, gradients and optimizer state grows with it."""
    if state_bytes >= budget_bytes:
        return f"a larger budget: parameters, gradients and optimizer state alone take {format_bytes(state_bytes)}"
    share = (budget_bytes - state_bytes) / (least.nbytes - state_bytes)
    return f"a micro-batch of at most {share:.0%} of this one"


def _split(trace: StepTrace, budget_bytes: int) -> str:
    """The fewest parts in which the operations at the floor would have to run."""
    found = [split_floor(trace, parts) for parts in _PARTS]
    enough = next((one for one in found if one.nbytes <= budget_bytes), None)
    if enough is None:
        return ""
    return f"{enough.operations} operations there in {enough.parts} parts of the batch ({format_bytes(enough.nbytes)})"
