"""The least memory in which a step can run, and what needs it.

However a plan moves storages, at each moment those that are in use, or that cannot be moved, must be on the device:

    minimum = max over moments j of (live_j − sum of the movable storages that may be away at j)

A storage may be away after its last pack, once nothing outside of autograd holds it, until its first unpack after that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import InfeasibleError
from trimaran.base.units import LEAST_BYTES, format_bytes
from trimaran.graph.trace.live_bytes import live_kept, sum_of_lives
from trimaran.graph.trace.types import Role, StepTrace, TraceOp, TraceStorage
from trimaran.simulator.memory import window_end


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumMemory:
    """The least memory in which a step can run.

    Attributes:
        nbytes: minimum memory [bytes]
        moment: at which it is needed
        operation: name of the operation that runs there, or of the tick
        module: path of the module of that operation
        holders: storages that are there then, largest first
        names: of storages, by their numbers, as far as they have one
    """

    nbytes: int
    moment: int
    operation: str
    module: str
    holders: tuple[TraceStorage, ...]
    names: Mapping[int, str]

    def describe(self, most: int = 4) -> str:
        """Where the memory is needed, and by what, in one sentence.

        Args:
            most: storages to name
        """
        named = ", ".join(f"{_described(one, self.names)} ({format_bytes(one.nbytes)})" for one in self.holders[:most])
        where = f" in {self.module}" if self.module else ""
        return f"{format_bytes(self.nbytes)} at {self.operation}{where}: {named}"


def away_span(trace: StepTrace, storage: TraceStorage) -> tuple[int, int]:
    """The longest time that a movable storage may be away, as moments `[first, end)`; empty where it may not.

    Args:
        trace: the step
        storage: a movable one
    """
    last = storage.packs[-1]
    served = [window_end(trace, moment) for moment in storage.unpacks if moment < last]
    back = next((moment for moment in storage.unpacks if moment >= last), last)
    return max([storage.outside_end, last, *served]), back


def needed_bytes(trace: StepTrace, smallest_bytes: int = 0) -> NDArray[np.int64]:
    """Live bytes at each moment when all movable storages are away whenever they may be [bytes].

    Args:
        trace: the step
        smallest_bytes: smaller storages are kept
    """
    spans = [(away_span(trace, storage), storage.nbytes) for storage in trace.movable]
    away = sum_of_lives(trace, ((*span, nbytes) for span, nbytes in spans if nbytes >= smallest_bytes))
    return live_kept(trace) - away


def minimum_memory(trace: StepTrace) -> MinimumMemory:
    """The minimum memory of a step, with what needs it.

    Args:
        trace: the step
    """
    needed = needed_bytes(trace)
    if not len(needed):
        return MinimumMemory(nbytes=0, moment=0, operation="", module="", holders=(), names={})
    moment = int(needed.argmax())
    event = trace.events[moment]
    name, module = (event.name, event.module) if isinstance(event, TraceOp) else (f"{event.kind} {event.index}", "")
    held = sorted((one for one in trace.storages if _holds(trace, one, moment)), key=lambda one: -one.nbytes)
    return MinimumMemory(
        nbytes=int(needed[moment]),
        moment=moment,
        operation=name,
        module=module,
        holders=tuple(held),
        names=trace.names,
    )


def _holds(trace: StepTrace, storage: TraceStorage, moment: int) -> bool:
    if not storage.birth <= moment < storage.keep_end or storage.nbytes == 0:
        return False
    if not storage.movable:
        return True
    first, end = away_span(trace, storage)
    return not first <= moment < end


def _described(storage: TraceStorage, names: Mapping[int, str]) -> str:
    if name := names.get(storage.number):
        return f"{storage.role} {name}"
    return f"{storage.role} of {storage.module}" if storage.module else f"{storage.role} {storage.number}"


# ---------------------------------------------------------------------------------------------------------------------
# Errors: why a budget cannot be met, and what to do instead, with figures


_WORTH = 0.01
_STATE = (Role.PARAMETER, Role.BUFFER, Role.GRADIENT, Role.OPTIMIZER)


def below_minimum(budget_bytes: int, least: MinimumMemory, *, outside_bytes: int = 0) -> InfeasibleError:
    """The error where the budget is below the minimum memory.

    Args:
        budget_bytes: peak that was asked for [bytes]
        least: minimum memory of the step
        outside_bytes: held all the time by what is no part of the step, and not in that budget [bytes]
    """
    by_role = {role: sum(one.nbytes for one in least.holders if one.role == role) for role in Role}
    ways = [_smaller(budget_bytes, least, sum(by_role[role] for role in _STATE))]
    ways.append("some layers in parts of the batch (`trimaran memory` finds which)")
    if by_role[Role.OPTIMIZER] > _WORTH * least.nbytes:  # counters of steps stay behind where the state has gone
        without = least.nbytes - by_role[Role.OPTIMIZER]
        ways.append(f"the optimizer's state on the host (about {format_bytes(without)})")
    outside = f", and {format_bytes(outside_bytes)} held by what is no part of it" if outside_bytes else ""
    return InfeasibleError(
        f"a budget of {format_bytes(budget_bytes + outside_bytes)} is below the minimum memory of this step, "
        f"{least.describe()}{outside}. "
        f"What would help: {'; '.join(ways)}",
        code="memory-plan.below-minimum",
        budget_bytes=budget_bytes,
        outside_bytes=outside_bytes,
        minimum_memory_bytes=least.nbytes,
        moment=least.moment,
    )


def none_found(budget_bytes: int, host_bytes: int | None, least: MinimumMemory) -> InfeasibleError:
    """The error where no plan was found although the budget is not below the minimum memory.

    Args:
        budget_bytes: peak that was asked for [bytes]
        host_bytes: most that may be offloaded at once [bytes]
        least: minimum memory of the step
    """
    cap = "" if host_bytes is None else f" with at most {format_bytes(host_bytes)} on the host"
    return InfeasibleError(
        f"no plan was found for {format_bytes(budget_bytes)}{cap}, although the minimum memory is "
        f"{format_bytes(least.nbytes)}. What would help: more host memory; a larger budget; a smaller micro-batch",
        code="memory-plan.not-found",
        budget_bytes=budget_bytes,
        host_bytes=host_bytes,
        minimum_memory_bytes=least.nbytes,
    )


def _smaller(budget_bytes: int, least: MinimumMemory, state_bytes: int) -> str:
    """The share of the batch that fits, if all but parameters, gradients and optimizer state grows with it."""
    if state_bytes >= budget_bytes:
        units = ' (GiB are written "12GiB")' if budget_bytes < LEAST_BYTES else ""
        return f"a larger budget: parameters, gradients and optimizer state take {format_bytes(state_bytes)}{units}"
    share = (budget_bytes - state_bytes) / (least.nbytes - state_bytes)
    return f"a micro-batch of at most {share:.0%} of this one"
