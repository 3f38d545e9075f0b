"""From a program and a cost table to what the simulator needs.

Every instruction gets its cost from the strategy (which operations a segment holds, how large a microbatch is) and the
table (what those take here). Nothing is measured in this room, and nothing is looked up outside the table: the same
arguments give the same costs.
"""

from collections.abc import Mapping, Sequence

from trimaran.cluster.layout import order_devices
from trimaran.cluster.types import Cluster
from trimaran.costs.compute import SegmentCost, context_of, operation_costs, own_form, segment_cost
from trimaran.costs.curves import at_batch
from trimaran.costs.fed_pricing import price_feeding
from trimaran.costs.halves import weight_shares
from trimaran.costs.intervals import add
from trimaran.costs.memory import memory_changes, segment_memory
from trimaran.costs.residuals import with_wire_buffers
from trimaran.costs.sharded import Shares
from trimaran.costs.state import RankState, held_state, rank_states
from trimaran.costs.tables import CostTable, StepCosts
from trimaran.costs.transfers import SEND, collectives_at_once, handling_seconds, transfer_cost
from trimaran.costs.two_rounds import bucket_transfers, with_encoding
from trimaran.costs.types import Cost, Interference, ProgramCosts, SecondRound, Transfer
from trimaran.costs.wire import code_program, reducing_table
from trimaran.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.segments import segment_ops
from trimaran.program.types import Instruction, Kind, Program, Strategy


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
    if strategy.device_order:
        cluster = order_devices(cluster, strategy.device_order)
    microbatch = microbatch_size(program, strategy, batch=batch)
    operations = operation_costs(graph, table, batch=microbatch, execution=strategy.execution)
    context = context_of(
        graph, table, operations, batch=microbatch, form=own_form(strategy), execution=strategy.execution
    )
    weights = weight_shares(graph, execution=strategy.execution)
    shares = Shares(graph, strategy)
    segments = [
        segment_cost(ops, operations, context, weights=weights, shares=shares.compute)
        for ops in segment_ops(graph, strategy)
    ]
    states = rank_states(program, graph, strategy)
    step = table.steps.get(graph.digest)
    compute: dict[str, Cost] = {}
    transfers: dict[str, Transfer] = {}
    handling: dict[str, float] = {}
    known: dict[tuple[object, ...], tuple[Transfer, Transfer | None]] = {}
    seconds: dict[str, Transfer] = {}
    codings = code_program(program, graph, strategy, table, cluster)
    reducing = reducing_table(strategy, table)
    for instruction in program:
        if instruction.communicates:
            # The members of a group share the price of what they do together.
            what = instruction.kind, instruction.rank if instruction.peer is not None else None, instruction.peer
            coding = codings.get(instruction.id)
            key = (*what, instruction.group, instruction.root, instruction.nbytes, coding)
            if key not in known and coding is not None:
                known[key] = bucket_transfers(instruction, coding, reducing, cluster)
            elif key not in known:
                known[key] = transfer_cost(instruction, table, cluster), None
            transfers[instruction.id], second = known[key]
            if second is not None:
                seconds[instruction.id] = second
            handling[instruction.id] = handling_seconds(instruction, table)
        else:
            compute[instruction.id] = _compute_cost(instruction, segments, states[instruction.rank], step, microbatch)
    if step is not None and step.accumulate is not None:
        held = [held_state(graph, ops, strategy) for ops in segment_ops(graph, strategy)]
        _add_sums(program, compute, [step.accumulate.at(tensors=s.trained_tensors, nbytes=s.trained) for s in held])
    _add_calls(program, compute, handling)
    marks = _marks(program, segments)
    memory = memory_changes(program, segment_memory(graph, strategy, batch=microbatch))
    encoded = with_encoding(program, compute, marks, codings)
    compute = encoded.compute
    memory = with_wire_buffers(memory, program, codings)
    decoding = {name: coding.decode for name, coding in codings.items()}
    beside = [*handling.values(), *(cost.seconds for cost in (*decoding.values(), *encoded.between.values()))]
    moved = (*transfers.values(), *seconds.values())
    period = price_feeding(program, strategy, table, step, compute, moved, beside, microbatch=microbatch)
    return ProgramCosts(
        compute=compute,
        transfers=transfers,
        marks=encoded.marks,
        handling=handling,
        decoding=decoding,
        second_rounds={
            name: SecondRound(between=encoded.between[name], transfer=second, turn=encoded.turns.get(name))
            for name, second in seconds.items()
        },
        interference=_interference(program, table),
        at_once=collectives_at_once(table, cluster),
        host_blocks=table.fingerprint.kind == "cpu",
        resident_bytes=tuple(
            state.resident_bytes(state_bytes_per_byte=step.state_bytes_per_byte if step else 0.0) for state in states
        ),
        memory=memory,
        period=period,
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
            code="pricing.batch-too-small",
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
                f"{instruction.id}: the cost table has no measured load and update of this job; measure it",
                code="pricing.no-update-cost",
            )
        if kind == Kind.LOAD:
            return at_batch(step.load, microbatch)
        fit = step.update if kind == Kind.UPDATE else step.clip
        return fit.at(tensors=state.updated_tensors, nbytes=state.updated)
    if instruction.segment is None or instruction.segment >= len(segments):
        raise InputError(f'{instruction.id}: "{kind}" needs a segment of 0 to {len(segments) - 1}')
    steps = segments[instruction.segment].steps
    if kind in steps:
        return steps[kind]
    if kind == Kind.RECOMPUTE:
        return steps[Kind.FORWARD]
    raise InputError(
        f'{instruction.id}: nobody measured what "{kind}" takes', code="pricing.not-measured", kind=str(kind)
    )


def _add_sums(program: Program, compute: dict[str, Cost], sums: Sequence[Cost]) -> None:
    """Add what a further microbatch spends on adding its gradients to those that are there."""
    for instructions in program.ranks:
        seen: set[int | None] = set()
        for item in instructions:
            if item.kind not in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                continue
            if item.segment in seen and item.segment is not None:
                compute[item.id] = add((compute[item.id], sums[item.segment]), source=compute[item.id].source)
            seen.add(item.segment)


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


def _marks(program: Program, segments: Sequence[SegmentCost]) -> dict[tuple[str, str], float]:
    marks: dict[tuple[str, str], float] = {}
    for instruction in program:
        if not instruction.marks:
            continue
        places: Mapping[str, tuple[float, float]] = {}
        if instruction.segment is not None:
            places = segments[instruction.segment].places.get(instruction.kind, {})
        for mark in instruction.marks:
            if mark.op not in places:
                raise InputError(
                    f'{instruction.id}: mark "{mark.name}" is at operation "{mark.op}", which is not in its segment',
                    op=mark.op,
                )
            before, after = places[mark.op]
            marks[instruction.id, mark.name] = before if mark.before else after
    return marks
