"""The least memory in which a step can run, and what holds it.

However a plan moves storages, at each moment those must be there that are in use, or that cannot be moved:

    floor = max over moments j of (live_j − sum of the movable storages that may be away at j)

A storage may be away after its last pack, once nothing outside of autograd holds it, until its first unpack after that.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.graph.trace.liveness import scratch_bytes
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp, TraceStorage
from trimaran.units import format_bytes


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
