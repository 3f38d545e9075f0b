"""A whole network in less memory than autograd would take: what offloading and recomputing add to a strategy.

The step of one microbatch was traced. A memory plan is made for the strategy's budget, and its step is simulated with
and without the plan. What the plan adds lengthens the forward and the backward of the program alike; where in them it
stalls is not looked at, so that what hides behind a backward (the gradient exchange) still does.

The gradients of replicas lie in buckets, and those of several microbatches are added up: they stay from step to step,
and the budget of a trace, whose gradients come and go, is smaller by that much.
"""

from dataclasses import dataclass, replace

from trimaran.costs.traced import TracedStep
from trimaran.costs.types import Cost, ProgramCosts
from trimaran.errors import InputError
from trimaran.graph.trace.types import Role
from trimaran.graph.types import Phase
from trimaran.planner.memory import plan_memory
from trimaran.program import Kind, Program, Strategy
from trimaran.program.memory import KEEP_ALL
from trimaran.simulator.memory import simulate_memory

_COMPUTES = frozenset({Kind.FORWARD, Kind.BACKWARD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Squeeze:
    """What a memory budget does to a microbatch.

    Attributes:
        factor: time of its forward and backward, relative to that with everything kept
        peak_bytes: most that lives at once [bytes]
    """

    factor: float
    peak_bytes: int


def squeeze(strategy: Strategy, traced: TracedStep) -> Squeeze:
    """What it costs to hold a strategy's memory budget.

    Args:
        strategy: with a budget; one network on each rank
        traced: the step of its microbatch

    Raises:
        InputError: the strategy has no budget
        InfeasibleError: the budget is below what the step needs at its fullest operation
    """
    if strategy.memory_bytes is None:
        raise InputError(f"the strategy {strategy.name} has no memory budget to hold: give Strategy.memory_bytes")
    trace, costs = traced.trace, traced.costs
    staying = _gradient_bytes(traced) if strategy.dp > 1 or strategy.microbatches > 1 else 0
    outcome = plan_memory(trace, costs, budget_bytes=strategy.memory_bytes - staying)
    kept_s = simulate_memory(trace, KEEP_ALL, costs).step_time_s
    update_s = sum(float(costs.durations_s[op.moment]) for op in trace.ops if op.phase is Phase.UPDATE)
    added_s = max(0.0, outcome.run.step_time_s - kept_s)
    if outcome.plan.moved:
        moved_bytes = outcome.run.to_host_bytes
        added_s += traced.hooks.seconds(packs=len(trace.packs), moved_bytes=moved_bytes, ranks=strategy.devices)
    return Squeeze(
        factor=1.0 + added_s / (kept_s - update_s) if kept_s > update_s else 1.0,
        peak_bytes=outcome.live.peak + staying,
    )


def squeezed(costs: ProgramCosts, program: Program, effect: Squeeze) -> ProgramCosts:
    """The costs of a program under a memory budget.

    Args:
        costs: with everything kept
        program: that they price
        effect: of the budget on a microbatch

    Returns:
        Forwards and backwards take longer; the first forward of a microbatch takes what is left up to the peak, and its
        backward gives it back.
    """
    compute: dict[str, Cost] = dict(costs.compute)
    memory: dict[str, tuple[int, int]] = dict(costs.memory)
    for rank, instructions in enumerate(program.ranks):
        above = max(0, effect.peak_bytes - (costs.resident_bytes[rank] if rank < len(costs.resident_bytes) else 0))
        for instruction in instructions:
            if instruction.kind in _COMPUTES:
                compute[instruction.id] = compute[instruction.id].scaled(effect.factor)
                memory[instruction.id] = (above, 0) if instruction.kind is Kind.FORWARD else (0, above)
    return replace(costs, compute=compute, memory=memory)


def _gradient_bytes(traced: TracedStep) -> int:
    return sum(storage.nbytes for storage in traced.trace.storages if storage.role is Role.GRADIENT)
