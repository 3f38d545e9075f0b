"""From a program and a cost table to what the simulator needs.

Every instruction gets its cost from the strategy (which operations a segment holds, how large a microbatch is) and the
table (what those take here). Nothing is measured in this room, and nothing is looked up outside the table: the same
arguments give the same costs.
"""

from collections.abc import Mapping, Sequence

from trimaran.cluster.types import Cluster
from trimaran.costs.compute import SegmentCost, context_of, form_of, operation_costs, segment_cost
from trimaran.costs.curves import at_batch
from trimaran.costs.memory import memory_changes, segment_memory
from trimaran.costs.state import RankState, rank_states
from trimaran.costs.tables import CostTable, StepCosts
from trimaran.costs.transfers import SEND, handling_seconds, transfer_cost
from trimaran.costs.types import Cost, Interference, ProgramCosts, Transfer
from trimaran.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.types import Instruction, Kind, Program, Strategy

_BACKWARDS = {
    # torch's split of a backward: gradients of the inputs, and of the weights. Where nobody measured, half each.
    Kind.BACKWARD: 1.0,
    Kind.BACKWARD_INPUT: 0.5,
    Kind.BACKWARD_WEIGHT: 0.5,
}


def price(
    program: Program, graph: Graph, strategy: Strategy, table: CostTable, cluster: Cluster, *, batch: int
) -> ProgramCosts:
    """What each instruction of a program costs.

    Args:
        program: a training step or an evaluation, lowered from the strategy
        graph: the network
        strategy: what was decided
        table: what was measured, for this graph and device
        cluster: who sits where
        batch: global batch size [samples]

    Returns:
        Costs, marks and memory of every instruction.

    Raises:
        InputError: the table or the cluster lacks something that the program needs
    """
    microbatch = microbatch_size(program, strategy, batch=batch)
    operations = operation_costs(graph, table, batch=microbatch, execution=strategy.execution)
    context = context_of(
        graph, table, operations, batch=microbatch, form=form_of(strategy), execution=strategy.execution
    )
    segments = [segment_cost(ops, operations, context) for ops in graph.parts(strategy.boundaries)]
    states = rank_states(program, graph, strategy)
    step = table.steps.get(graph.digest)
    compute: dict[str, Cost] = {}
    transfers: dict[str, Transfer] = {}
    handling: dict[str, float] = {}
    for instruction in program:
        if instruction.communicates:
            transfers[instruction.id] = transfer_cost(instruction, table, cluster)
            handling[instruction.id] = handling_seconds(instruction, table)
        else:
            compute[instruction.id] = _compute_cost(instruction, segments, states[instruction.rank], step, microbatch)
    _add_calls(program, compute, handling)
    return ProgramCosts(
        compute=compute,
        transfers=transfers,
        marks=_marks(program, segments),
        handling=handling,
        interference=_interference(program, table),
        host_blocks=table.fingerprint.kind == "cpu",
        resident_bytes=tuple(
            state.resident_bytes(state_bytes_per_byte=step.state_bytes_per_byte if step else 0.0) for state in states
        ),
        memory=memory_changes(program, segment_memory(graph, strategy, batch=microbatch)),
    )


def microbatch_size(program: Program, strategy: Strategy, *, batch: int) -> int:
    """Samples of the largest microbatch.

    Args:
        program: says into how many microbatches a replica splits its share
        strategy: says how many replicas there are
        batch: global batch size [samples]

    Raises:
        InputError: fewer samples than replicas

    Example:
        >>> program = Program(ranks=((), ()), segments=1, microbatches=4)
        >>> microbatch_size(program, Strategy(dp=2, microbatches=4), batch=30)  # shares of 15: 4, 4, 4, 3
        4
    """
    if batch < strategy.dp:
        raise InputError(
            f"a global batch of {batch} is too small for {strategy.dp} replicas: take a larger one or fewer of them",
            batch=batch,
            replicas=strategy.dp,
        )
    share = -(-batch // strategy.dp)
    return -(-share // program.microbatches)


def _compute_cost(
    instruction: Instruction,
    segments: Sequence[SegmentCost],
    state: RankState,
    step: StepCosts | None,
    microbatch: int,
) -> Cost:
    kind = instruction.kind
    if kind in (Kind.LOAD, Kind.UPDATE, Kind.CLIP):
        if step is None:
            raise InputError(
                f"{instruction.id}: the cost table has no measured load and update of this job; measure it"
            )
        if kind == Kind.LOAD:
            return at_batch(step.load, microbatch)
        fit = step.update if kind == Kind.UPDATE else step.clip
        return fit.at(tensors=state.updated_tensors, nbytes=state.updated)
    if instruction.segment is None or instruction.segment >= len(segments):
        raise InputError(f'{instruction.id}: "{kind}" needs a segment of 0 to {len(segments) - 1}')
    segment = segments[instruction.segment]
    if kind in _BACKWARDS:
        return segment.backward.scaled(_BACKWARDS[kind])
    if kind in (Kind.FORWARD, Kind.RECOMPUTE):
        return segment.forward
    if kind == Kind.EVALUATE:
        return segment.evaluation
    raise InputError(f'{instruction.id}: nobody measured what "{kind}" takes', kind=str(kind))


def _add_calls(program: Program, compute: dict[str, Cost], handling: Mapping[str, float]) -> None:
    """Add what a backward spends on handing its gradients over to homes.

    A backward that ran under DDP has its few calls in its measured time; with homes there is one a bucket, or one a
    parameter.
    """
    for instruction in program:
        if instruction.kind != Kind.REDUCE or not handling[instruction.id]:
            continue
        for name in instruction.after:
            backward, is_mark, _ = name.partition("!")
            if is_mark:
                identifier = f"r{instruction.rank}/{backward}"
                cost, more_s = compute[identifier], handling[instruction.id]
                compute[identifier] = Cost(cost.seconds + more_s, cost.low + more_s, cost.high + more_s, cost.source)


def _interference(program: Program, table: CostTable) -> Interference:
    """The factors of the kind of transfer that moves most bytes; messages and collectives differ."""
    moved = {SEND: 0, str(Kind.ALL_REDUCE): 0}
    for instruction in program:
        if instruction.communicates:
            moved[str(Kind.ALL_REDUCE) if instruction.group else SEND] += instruction.nbytes
    kinds = sorted(moved, key=lambda kind: -moved[kind])
    found = [table.interference[kind] for kind in kinds if moved[kind] and kind in table.interference]
    return found[0] if found else Interference()


def _marks(program: Program, segments: Sequence[SegmentCost]) -> Mapping[tuple[str, str], float]:
    marks: dict[tuple[str, str], float] = {}
    for instruction in program:
        for mark in instruction.marks:
            reached = {} if instruction.segment is None else segments[instruction.segment].reached
            if mark.op not in reached:
                raise InputError(
                    f'{instruction.id}: mark "{mark.name}" is after operation "{mark.op}", which is not in its segment',
                    op=mark.op,
                )
            marks[instruction.id, mark.name] = reached[mark.op]
    return marks
