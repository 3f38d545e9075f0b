"""Offload and recompute of a strategy: what its memory budget costs.

The step of one microbatch of the whole network was traced. A memory plan is made for the budget, and the step is
simulated with and without it. The plan lengthens forwards and backwards of the program by the same factor. The places
of its stalls are not modelled, so communication that overlaps with a backward (the gradient exchange) still does.

    a whole network a rank    one microbatch is planned; each has the same plan
    stages of a pipeline      a rank's microbatches are planned in the order of its schedule; of a long step some stand
                              for all (`memory.stages`)

The gradients of replicas lie in buckets, and those of several microbatches are added up: they stay from step to step,
and the budget of a trace, whose gradients come and go, is smaller by that much. So it is by all state of a stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.units import format_bytes
from trimaran.graph.trace.types import Role
from trimaran.graph.types import Graph, Phase
from trimaran.memory.bound import DEFAULT_SMALLEST_BYTES, relax
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.problem import memory_problem
from trimaran.memory.search import plan_memory
from trimaran.memory.stages import passes_of, repeated, segmented, stage_step
from trimaran.pricing.copy_codecs import CopyCodec, copy_codec
from trimaran.pricing.offload_costs import MemoryCosts, TracedStep
from trimaran.pricing.types import Cost, ProgramCosts
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.memory import KEEP_ALL
from trimaran.program.strategy import Strategy
from trimaran.program.types import RECEIVES, SENDS, Instruction, Kind, Program
from trimaran.simulator.memory import simulate_memory

_COMPUTES = frozenset({Kind.FORWARD, Kind.BACKWARD})


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetEffect:
    """Effect of a memory budget on a rank.

    Attributes:
        factor: time of its forwards and backwards, relative to that without offload or recompute
        peak_bytes: most that lives at once [bytes]
        offloaded_bytes: that go to the host in a step, or in a microbatch of a whole network [bytes]
        coded_bytes: of these, what is coded for its copies [bytes]
    """

    factor: float
    peak_bytes: int
    offloaded_bytes: int = 0
    coded_bytes: int = 0


Squeezes = Mapping[int, BudgetEffect]
"""Of each rank of a replica, by the first segment that it has."""


def squeeze(strategy: Strategy, traced: TracedStep, *, host_bytes: int | None = None) -> BudgetEffect:
    """Cost of the memory budget of a strategy that has the whole network on each rank.

    Args:
        strategy: with a budget
        traced: the step of its microbatch
        host_bytes: most that a rank may offload to its host at once [bytes]; None: no limit

    Raises:
        InputError: the strategy has no budget
        InfeasibleError: the budget is below the memory of the step's largest operation, or the host has too little room
    """
    gradients = _resident_gradients(strategy, traced)
    # A plan is made once: its costs are asked for again by other strategies, by searches and by whoever explains one.
    known = _KNOWN_WHOLE.setdefault(traced, {})
    key = (strategy.memory_bytes, strategy.codec, strategy.devices, gradients, host_bytes)
    if key not in known:
        try:
            known[key] = _planned(traced, strategy, resident_bytes=gradients, host_bytes=host_bytes)
        except InfeasibleError as error:
            known[key] = error
    found = known[key]
    if isinstance(found, InfeasibleError):
        raise found
    return found


_KNOWN_WHOLE: WeakKeyDictionary[TracedStep, dict[object, BudgetEffect | InfeasibleError]] = WeakKeyDictionary()


def least_squeeze(strategy: Strategy, traced: TracedStep, *, host_bytes: int | None = None) -> BudgetEffect:
    """A lower bound on the cost of a strategy's memory budget, by a linear program that takes a fraction of a plan.

    Args:
        strategy: with a budget; it has the whole network on each rank
        traced: the step of its microbatch
        host_bytes: most that a rank may offload to its host at once [bytes]; None: no limit

    Returns:
        The least factor, without a peak; 1 where nothing is known, as with a codec, or where there is no plan at all.
    """
    nothing = BudgetEffect(factor=1.0, peak_bytes=0)
    costs = replace(traced.costs, host_bytes=host_bytes)
    budget_bytes = (strategy.memory_bytes or 0) - _resident_gradients(strategy, traced) - costs.workspace_bytes
    if strategy.codec is not None or budget_bytes < minimum_memory(traced.trace).nbytes:
        return nothing
    problem = memory_problem(traced.trace, costs, smallest_bytes=DEFAULT_SMALLEST_BYTES)
    try:
        least_s = relax(problem, budget_bytes, host_bytes=host_bytes).step_time_s
    except InfeasibleError:
        return nothing
    return BudgetEffect(factor=_factor(traced, costs, least_s), peak_bytes=0)


def _resident_gradients(strategy: Strategy, traced: TracedStep) -> int:
    """Gradients that stay from step to step on a rank that has the whole network [bytes]."""
    if strategy.dp == 1 and strategy.microbatches == 1:
        return 0
    return sum(storage.nbytes for storage in traced.trace.storages if storage.role is Role.GRADIENT)


def _factor(traced: TracedStep, costs: MemoryCosts, step_s: float, *, more_s: float = 0.0) -> float:
    """Time of forwards and backwards relative to that when all is kept, where a step takes so long [s]."""
    kept_s = simulate_memory(traced.trace, KEEP_ALL, costs).step_time_s
    update_s = sum(float(costs.durations_s[op.moment]) for op in traced.trace.ops if op.phase is Phase.UPDATE)
    added_s = max(0.0, step_s - kept_s) + more_s
    return 1.0 + added_s / (kept_s - update_s) if kept_s > update_s else 1.0


def squeeze_stages(
    strategy: Strategy,
    traced: TracedStep,
    graph: Graph,
    program: Program,
    *,
    resident_bytes: Sequence[int],
    through_memory: bool = False,
    host_bytes: int | None = None,
) -> Squeezes:
    """Cost of the memory budget of each stage of a pipeline.

    Args:
        strategy: with a budget and boundaries
        traced: the step of its microbatch, of the whole network
        graph: the network
        program: one step
        resident_bytes: parameters, gradients and optimizer state of each rank [bytes]
        through_memory: messages between stages lie in rings of memory, with room for those of a step and one more
        host_bytes: most that a rank may offload to its host at once [bytes]; None: no limit

    Raises:
        InputError: the strategy has no budget
        InfeasibleError: the budget is below the minimum memory of a stage, or the host has too little room
    """
    known = _KNOWN.setdefault(traced, {})
    rings = [ring_bytes(program, rank) if through_memory else 0 for rank in range(len(program.ranks))]
    resident = tuple(map(sum, zip(resident_bytes, rings, strict=True)))
    key = (strategy, resident, host_bytes)
    if key not in known:
        whole = segmented(traced, graph, [[op.id for op in ops] for ops in segment_ops(graph, strategy)])
        found: dict[int, BudgetEffect] = {}
        for rank, instructions in enumerate(program.ranks):
            first = _first_segment(instructions)
            if first in found:
                continue
            step = stage_step(whole, repeated(passes_of(instructions), strategy.pp if strategy.chunks > 1 else 1))
            _check_room(strategy, step, first, resident[rank] + step.costs.workspace_bytes)
            found[first] = _planned(step, strategy, resident_bytes=resident[rank], host_bytes=host_bytes)
        known[key] = found
    return known[key]


_KNOWN: WeakKeyDictionary[TracedStep, dict[object, Squeezes]] = WeakKeyDictionary()


def _check_room(strategy: Strategy, step: TracedStep, stage: int, staying: int) -> None:
    """Refuse a budget below the minimum memory of a stage."""
    least, budget_bytes = minimum_memory(step.trace), strategy.memory_bytes or 0
    if staying + least.nbytes > budget_bytes:
        raise InfeasibleError(
            f"stage {stage} of {strategy.name} needs at least {format_bytes(staying + least.nbytes)}: parameters, "
            f"gradients, optimizer state and buffers {format_bytes(staying)}, and {least.describe()}. What would help: "
            "more microbatches, more stages, or a larger budget",
            code="memory-plan.below-minimum-of-stage",
            stage=stage,
            budget_bytes=budget_bytes,
            minimum_memory_bytes=staying + least.nbytes,
        )


def ring_bytes(program: Program, rank: int) -> int:
    """Rings of memory through which a rank sends to others of its machine and receives [bytes].

    Each has room for all messages of a step between two ranks in one direction, and one more.

    Args:
        program: one step
        rank: whose messages
    """
    sizes: dict[tuple[int, int | None], list[int]] = {}
    for item in program:
        if item.kind in SENDS and rank in (item.rank, item.peer):
            sizes.setdefault((item.rank, item.peer), []).append(item.nbytes)
    return sum(sum(found) + max(found) for found in sizes.values())


def _first_segment(instructions: Sequence[Instruction]) -> int:
    return min((item.segment or 0 for item in instructions if item.kind in _COMPUTES), default=0)


def _planned(traced: TracedStep, strategy: Strategy, *, resident_bytes: int, host_bytes: int | None) -> BudgetEffect:
    """Plan the memory of a step.

    Args:
        traced: the step
        strategy: with a budget
        resident_bytes: that stay from step to step, besides what the trace has [bytes]
        host_bytes: most that may be offloaded at once [bytes]; None: no limit
    """
    if strategy.memory_bytes is None:
        raise InputError(f"the strategy {strategy.name} has no memory budget to hold: give Strategy.memory_bytes")
    trace = traced.trace
    costs = replace(traced.costs, host_bytes=host_bytes, codec=_codec_of(strategy, traced))
    staying = resident_bytes + costs.workspace_bytes
    outcome = plan_memory(trace, costs, budget_bytes=strategy.memory_bytes - staying)
    hooks_s = 0.0
    if outcome.plan.moved:
        moved_bytes = outcome.run.to_host_bytes
        hooks_s = traced.hooks.seconds(packs=len(trace.packs), moved_bytes=moved_bytes, ranks=strategy.devices)
    return BudgetEffect(
        factor=_factor(traced, costs, outcome.run.step_time_s, more_s=hooks_s),
        peak_bytes=outcome.live.peak + staying,
        offloaded_bytes=outcome.run.to_host_bytes,
        coded_bytes=sum(trace.storages[number].copy_bytes for number in outcome.plan.codecs),
    )


def _codec_of(strategy: Strategy, traced: TracedStep) -> CopyCodec | None:
    """The codec of a strategy for a step, at the rate that its device has."""
    if strategy.codec is None:
        return None
    name = strategy.codec.name
    if name not in traced.coding_bytes_per_s:
        raise InputError(
            f"the strategy {strategy.name} has the codec {name}, whose rate on this device is not known: give "
            "TracedStep.coding_bytes_per_s",
            code="memory-plan.codec-without-rate",
            codec=name,
        )
    return copy_codec(strategy.codec, traced.trace, coding_bytes_per_s=traced.coding_bytes_per_s[name])


def squeezed(costs: ProgramCosts, program: Program, effects: Squeezes) -> ProgramCosts:
    """The costs of a program under a memory budget.

    Args:
        costs: without offload or recompute
        program: that they price
        effects: of the budget on each rank of a replica

    Returns:
        Forwards and backwards take longer; the first forward of a microbatch takes the rest up to the peak, and its
        backward gives it back. Where several microbatches are in flight, the first of them takes it, and the last gives
        it back. Messages between stages are in it.
    """
    compute: dict[str, Cost] = dict(costs.compute)
    memory: dict[str, tuple[int, int]] = dict(costs.memory)
    for rank, instructions in enumerate(program.ranks):
        effect = effects[_first_segment(instructions)]
        above = max(0, effect.peak_bytes - (costs.resident_bytes[rank] if rank < len(costs.resident_bytes) else 0))
        in_flight = 0
        for instruction in instructions:
            if instruction.kind in SENDS or instruction.kind in RECEIVES:
                memory[instruction.id] = (0, 0)
            if instruction.kind not in _COMPUTES:
                continue
            forward = instruction.kind is Kind.FORWARD
            compute[instruction.id] = compute[instruction.id].scaled(effect.factor)
            alone = in_flight == 0 if forward else in_flight == 1
            memory[instruction.id] = ((above, 0) if forward else (0, above)) if alone else (0, 0)
            in_flight += 1 if forward else -1
    return replace(costs, compute=compute, memory=memory)
