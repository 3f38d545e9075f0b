"""Refusals: why a budget cannot be kept, and the ways out with their figures."""

from trimaran.errors import InfeasibleError
from trimaran.graph.trace.types import Role, StepTrace
from trimaran.planner.memory.floor import Floor
from trimaran.planner.memory.splitting import split_floor
from trimaran.units import format_bytes

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
