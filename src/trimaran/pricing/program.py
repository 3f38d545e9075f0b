"""From a program and a cost table to the costs that the simulator reads.

Every instruction gets its cost from the strategy (which operations a segment holds, how large a microbatch is) and the
table (measured times of those operations). Pricing measures nothing and reads nothing outside the table: the same
arguments give the same costs.

On a machine of the catalog gradients are exchanged as the framework does it, by the rules of a data-parallel step
(`simulator.data_parallel`): a call is handled before it starts and slows the backward down for as long as it takes,
gradients are copied into buffers of calls and out of them once a step, and all ranks wait for the slowest at the
end of a step, whatever the strategy. Means of losses and buffers that are broadcast cost nothing: they are
part of the published steps to which the constants are fitted. Left out: calls that start in cycles (Horovod) start when
they are full here.

Whether the simulation of one replica of a program gives the times of all.

It does where all replicas have the same costs and none shares a link with another: transfers within a replica use its
links only. Collectives of several replicas are priced for the whole group.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace

from trimaran.base.errors import InputError
from trimaran.graph.trace.live_bytes import StepMemory
from trimaran.graph.types import Graph
from trimaran.machine.types import Allocation, Machine
from trimaran.pricing import input_pipeline as fed_step
from trimaran.pricing.collectives.formulas import OPERATION_OF
from trimaran.pricing.compute import SegmentCost, context_of, operation_costs, own_form, segment_cost, weight_shares
from trimaran.pricing.curves import at_batch
from trimaran.pricing.exchange.costs import handling_s, straggling
from trimaran.pricing.exchange.frameworks import ExchangeRecipe, recipe_of
from trimaran.pricing.exchange.replica_memory import step_with_buckets
from trimaran.pricing.exchange.unknowns import End
from trimaran.pricing.gradient_compression import bucket_transfers, code_program, reducing_table, with_encoding
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.memory import (
    RankState,
    SegmentMemory,
    Shares,
    held_state,
    highest_bytes,
    memory_changes,
    rank_states,
    segment_memory,
    with_wire_buffers,
)
from trimaran.pricing.tables import CostTable, SampleCosts, StepCosts
from trimaran.pricing.transfers import SEND, collectives_at_once, handling_seconds, has_queues, transfer_cost
from trimaran.pricing.types import Cost, Interference, OpCost, ProgramCosts, SecondRound, Transfer, add
from trimaran.program.gradients import gradient_buckets
from trimaran.program.layout import strategy_layout
from trimaran.program.lowering.partition import routes_of, segment_ops
from trimaran.program.lowering.schedules import order_of
from trimaran.program.lowering.tensor_parallel import own_parameters
from trimaran.program.strategy import Feeding, Strategy
from trimaran.program.types import Instruction, Kind, Program

# ---------------------------------------------------------------------------------------------------------------------
# The loads of a program whose strategy does not load in line, and how often its data come


def price_feeding(
    program: Program,
    strategy: Strategy,
    table: CostTable,
    cluster: Allocation,
    step: StepCosts | None,
    compute: MutableMapping[str, Cost],
    transfers: Iterable[Transfer],
    handling: Iterable[float],
    *,
    microbatch: int,
) -> Cost | None:
    """Replace costs of loads in line by those of the strategy's input pipeline, and find its period.

    Args:
        program: one step; an evaluation loads in line, whatever its strategy says
        strategy: says how ranks are fed
        table: of its costs
        cluster: who sits where; the ranks of a host share its cores and disk
        step: has the costs of samples; where not measured, loads keep their cost in line as an upper bound
        compute: price of each instruction that is not communication; those of loads are replaced
        transfers: of all communication; of a collective of two sums both
        handling: time of the ranks' threads for each communication: handling, and decoding of received data [s]
        microbatch: samples of one

    Returns:
        The time below which no step comes [s]; None where the training's own thread does all the loading.
    """
    feeding = strategy.feeding
    loads = [item for item in program if item.kind == Kind.LOAD]
    is_training = any(item.kind == Kind.FORWARD for item in program)
    samples = None if step is None else step.samples
    # In line, a load measured here is what it was measured to be; elsewhere it follows from the costs of samples.
    given = table.software is not None and samples is not None
    if not is_training or not loads or (_is_in_line(feeding) and not given):
        return None
    if samples is None:
        for item in loads:
            compute[item.id] = replace(compute[item.id], low=0.0, source="assumed: at most its time in line")
        return None
    readers = len({item.rank for item in loads})
    copies = strategy.devices / len(program.ranks)  # one replica may stand for all
    if given:
        return _price_given(program, strategy, table, cluster, samples, compute, microbatch=microbatch)
    cost = fed_step.load(samples, feeding, microbatch=microbatch)
    for item in loads:
        compute[item.id] = cost
    if not feeding.workers and not feeding.copies_ahead:
        return None
    on_host = table.fingerprint.kind == "cpu"
    cores = table.fingerprint.cores
    busy_s = 0.0
    if on_host:
        held = bool(table.fingerprint.link)
        busy_s = copies * (
            sum(entry.seconds for entry in compute.values())
            + sum(handling)
            # Unless something holds a local link back, a transfer is work of cores.
            + sum(0.0 if held else entry.seconds for entry in transfers)
        )
    return fed_step.period(
        samples,
        feeding,
        microbatch=microbatch,
        microbatches=loaded_microbatches(program),
        readers=round(readers * copies),
        busy_s=busy_s,
        cores=cores if on_host else max(1, cores - strategy.devices),
    )


def _price_given(
    program: Program,
    strategy: Strategy,
    table: CostTable,
    cluster: Allocation,
    samples: SampleCosts,
    compute: MutableMapping[str, Cost],
    *,
    microbatch: int,
) -> Cost | None:
    """The same on a machine of the catalog, whose busiest host sets the period: it has the most ranks that read."""
    readers, cores = readers_of_host(program, strategy, cluster), table.fingerprint.cores
    samples = fed_step.on_links(samples, cluster.machine.node, readers)
    cost = fed_step.load(samples, strategy.feeding, microbatch=microbatch, readers=readers, cores=cores)
    for item in program:
        if item.kind == Kind.LOAD:
            compute[item.id] = cost
    return fed_step.period(
        samples,
        strategy.feeding,
        microbatch=microbatch,
        microbatches=loaded_microbatches(program),
        readers=readers,
        cores=cores,
    )


def readers_of_host(program: Program, strategy: Strategy, cluster: Allocation) -> int:
    """Ranks that read on the host with the most of them.

    Args:
        program: one step; on many devices that of one replica, which stands for all
        strategy: says how many ranks there are
        cluster: who sits where, in the order of the strategy or in that of the machine
    """
    if strategy.device_order:
        cluster = cluster.ordered(strategy.device_order)
    reading, size = {item.rank for item in program if item.kind == Kind.LOAD}, len(program.ranks)
    hosts = Counter(cluster.hosts[rank] for rank in range(strategy.devices) if rank % size in reading)
    return max(hosts.values(), default=1)


def loaded_microbatches(program: Program) -> int:
    """Microbatches of a step that a rank which reads loads."""
    loads = [item.rank for item in program if item.kind == Kind.LOAD]
    return max(1, len(loads) // max(1, len(set(loads))))


def _is_in_line(feeding: Feeding) -> bool:
    return not (feeding.workers or feeding.cached or feeding.copies_ahead)


def price(
    program: Program,
    graph: Graph,
    strategy: Strategy,
    table: CostTable,
    cluster: Allocation,
    *,
    batch: int,
    end: End = "typical",
) -> ProgramCosts:
    """Cost of each instruction of a program.

    Args:
        program: a training step or an evaluation, lowered from the strategy
        graph: the network
        strategy: the chosen one
        table: measured costs, for this graph and device
        cluster: who sits where
        batch: global batch size [samples]
        end: where constants of a framework's exchange are taken that nobody has measured, on a machine of the catalog

    Returns:
        Costs, marks and memory of every instruction.

    Raises:
        InputError: the table or the cluster lacks something that the program needs
    """
    if strategy.device_order:
        cluster = cluster.ordered(strategy.device_order)
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
    recipe = None if table.software is None else recipe_of(table.software).at(end)
    codings = code_program(program, graph, strategy, table, cluster)
    reducing = reducing_table(strategy, table)
    for instruction in program:
        name = instruction.id
        if instruction.communicates:
            # The members of a group share the price of their collective.
            what = instruction.kind, instruction.rank if instruction.peer is not None else None, instruction.peer
            coding = codings.get(name)
            ours = recipe if _is_gradients(instruction) else None
            counted = recipe is not None and instruction.label in _IN_CONSTANTS
            key = (*what, instruction.group, instruction.root, instruction.nbytes, coding, ours is None, counted)
            if key not in known and coding is not None:
                first, second = bucket_transfers(instruction, coding, reducing, cluster)
                known[key] = first if ours is None else _called(first, ours, instruction, cluster), second
            elif key not in known and counted:
                known[key] = _NOTHING, None
            elif key not in known and ours is not None:
                known[key] = _gradient_call(instruction, ours, table, cluster), None
            elif key not in known:
                known[key] = transfer_cost(instruction, table, cluster), None
            transfers[name], second = known[key]
            if second is not None:
                seconds[name] = second
            handling[name] = handling_seconds(instruction, table)
        else:
            compute[name] = _compute_cost(instruction, segments, states[instruction.rank], step, microbatch)
    if step is not None and step.accumulate is not None:
        held = [held_state(graph, ops, strategy) for ops in segment_ops(graph, strategy)]
        _add_sums(program, compute, [step.accumulate.at(tensors=s.trained_tensors, nbytes=s.trained) for s in held])
    _add_calls(program, compute, handling)
    marks = _marks(
        program,
        segments,
        _completions(graph, strategy, operations),
        overlaps=recipe is None or recipe.overlaps,
    )
    memory = memory_changes(program, _memory_of(graph, strategy, table, microbatch))
    encoded = with_encoding(program, compute, marks, codings)
    compute = encoded.compute
    memory = with_wire_buffers(memory, program, codings)
    decoding = {name: coding.decode for name, coding in codings.items()}
    spent = [*handling.values(), *(cost.seconds for cost in (*decoding.values(), *encoded.between.values()))]
    moved = (*transfers.values(), *seconds.values())
    period = price_feeding(program, strategy, table, cluster, step, compute, moved, spent, microbatch=microbatch)
    return ProgramCosts(
        compute=compute,
        transfers=transfers,
        marks=encoded.marks,
        handling=handling,
        decoding=decoding,
        second_rounds={
            name: SecondRound(between=encoded.between[name], transfer=second, second_sum=encoded.second_sums.get(name))
            for name, second in seconds.items()
        },
        interference=_interference(program, table, recipe),
        at_once=collectives_at_once(table, cluster),
        host_blocks=table.fingerprint.kind == "cpu",
        resident_bytes=tuple(_resident_bytes(state, graph, strategy, table, microbatch) for state in states),
        memory=memory,
        period=period,
        between_s=_between_s(program, table)
        if recipe is None
        else _copies_s(program, recipe, cluster.machine, [state.trained_tensors for state in states]),
        straggling=straggling_share(table, cluster, strategy.devices),
    )


def least_peaks(graph: Graph, strategy: Strategy, table: CostTable, *, batch: int) -> tuple[int, ...]:
    """Lower bound on the peak memory of each rank of a replica, from the order of its compute alone [bytes].

    Left out: what is sent and received early or late, the optimizer state of owners (`p2p`), and stashed versions of
    parameters. Without these and without stages nothing is left out.

    Args:
        graph: the network
        strategy: with boundaries, and no placement
        table: measured costs, for this graph and device
        batch: global batch size [samples]

    Raises:
        InputError: the table lacks something that the strategy needs
    """
    microbatch = batch // (strategy.dp * strategy.microbatches)
    segments = _memory_of(graph, strategy, table, microbatch)
    parts, layout = segment_ops(graph, strategy), strategy_layout(strategy)
    moved: dict[tuple[Kind, int], int] = {}
    for route in routes_of(graph, parts, layout.rows):
        for kind, segment, forward in (
            (Kind.RECEIVE_FORWARD, route.consumer, True),
            (Kind.SEND_BACKWARD, route.consumer, False),
            (Kind.RECEIVE_BACKWARD, route.producer, False),
        ):
            moved[kind, segment] = moved.get((kind, segment), 0) + route.nbytes(microbatch, forward=forward)
    peaks = []
    for row, order in enumerate(order_of(strategy)):
        ops = [op for segment, own in enumerate(parts) if layout.rows[segment] == row for op in own]
        state = held_state(graph, ops, strategy)
        if strategy.sync == "p2p":
            # Each rank updates what it owns, some of them perhaps nothing.
            state = replace(state, updated=0)
        held = _resident_bytes(state, graph, strategy, table, microbatch)
        peaks += [held + highest_bytes(order, segments, moved)] * strategy.tp
    return tuple(peaks)


def _memory_of(graph: Graph, strategy: Strategy, table: CostTable, microbatch: int) -> tuple[SegmentMemory, ...]:
    """Bytes of each segment; of a network in one that of its traced step, where the table has it."""
    step = table.steps.get(graph.digest)
    needs = None if step is None else step.needs_at(microbatch)
    traced_bytes = None if needs is None else _traced_bytes(needs.memory, strategy, table.software, microbatch)
    return segment_memory(graph, strategy, batch=microbatch, traced_bytes=traced_bytes)


def _resident_bytes(state: RankState, graph: Graph, strategy: Strategy, table: CostTable, microbatch: int) -> int:
    """What a rank holds all the time: its state, its buckets, the workspace of its kernels [bytes]."""
    step = table.steps.get(graph.digest)
    needs = None if step is None else step.needs_at(microbatch)
    return (
        state.resident_bytes(state_bytes_per_byte=step.state_bytes_per_byte if step else 0.0)
        + (state.trained if _copies_gradients(strategy, table.software) else 0)
        + (0 if needs is None else needs.workspace_bytes)
    )


def _copies_gradients(strategy: Strategy, software: Software | None) -> bool:
    """Whether replicas hold gradients a second time, in buckets: those of a framework of the catalog's machines do."""
    replicated = strategy.dp > 1 and strategy.zero < 2 and strategy.sync == "all-reduce"
    return replicated and software is not None and not software.gradient_views


def _traced_bytes(memory: StepMemory, strategy: Strategy, software: Software | None, microbatch: int) -> int | None:
    """Memory of a traced step besides its state and buckets, where each rank has the whole network [bytes].

    Gradients count as state that is there all the time, so those that come and go make it less.
    """
    if software is None or strategy.segments > 1 or strategy.tp > 1 or strategy.shards:
        return None
    stay = strategy.microbatches > 1 or strategy.zero > 1 or strategy.sync != "all-reduce"
    step_bytes, _ = step_with_buckets(memory, software, batch=microbatch, buckets=strategy.dp > 1, stay=stay)
    state = memory.parameter_bytes + memory.buffer_bytes + memory.gradient_bytes + memory.optimizer_bytes
    return max(0, step_bytes - state)


_IN_CONSTANTS = frozenset({"buffers", "loss", "metric"})
"""Other communication between ranks, part of the published steps to which the constants of exchanges are fitted."""

_NOTHING = Transfer(
    latency_s=0.0, flow_s=0.0, links=(), low=0.0, high=0.0, source="analytic: in the constants of the exchange"
)


def straggling_share(table: CostTable, cluster: Allocation, devices: int) -> float:
    """Wait for the slowest rank at the end of a step, as a share of its compute; 0 where it is not known.

    Args:
        table: of the costs
        cluster: the devices
        devices: that take part, the first ones of the cluster
    """
    if table.software is None:
        return table.between.straggling if table.between is not None and devices > 1 else 0.0
    return straggling(devices, len(set(cluster.hosts[:devices])))


def _is_gradients(item: Instruction) -> bool:
    """Whether an instruction exchanges gradients or parameters: a mark of compute starts it, and no activations do."""
    return bool(item.group) and any("!" in name for name in item.after) and not _ACTIVATIONS.fullmatch(item.label)


_ACTIVATIONS = re.compile(r"[fgxy]\d+")
"""Labels of exchanges of activations, and of their gradients, between ranks that share tensors."""


def _called(transfer: Transfer, recipe: ExchangeRecipe, item: Instruction, cluster: Allocation) -> Transfer:
    """A collective as a framework calls it: the handling of the call, then all of it overlapping the backward."""
    devices = min(len(item.group), cluster.machine.node.devices)
    call_s = recipe.on(devices).call_s
    return replace(
        transfer,
        latency_s=call_s,
        flow_s=transfer.seconds,
        low=transfer.low + call_s,
        high=transfer.high + call_s,
    )


def called_transfer(item: Instruction, table: CostTable, cluster: Allocation) -> Transfer:
    """Cost of a collective of gradients, or inside a step of compute, as the framework of a table calls it.

    Args:
        item: the collective
        table: of the costs; where they are measured, a call costs nothing in addition
        cluster: who sits where
    """
    if table.software is None:
        return transfer_cost(item, table, cluster)
    return _gradient_call(item, recipe_of(table.software), table, cluster)


def _gradient_call(item: Instruction, recipe: ExchangeRecipe, table: CostTable, cluster: Allocation) -> Transfer:
    """A call that sums gradients, of all collectives of which the framework makes it."""
    kinds = [item.kind]
    if item.kind == Kind.ALL_REDUCE:
        kinds = [next(kind for kind, name in OPERATION_OF.items() if name == op) for op in recipe.collectives]
    first, *others = (transfer_cost(replace(item, kind=kind), table, cluster) for kind in kinds)
    for other in others:
        first = replace(
            first,
            latency_s=first.latency_s + other.latency_s,
            flow_s=first.flow_s + other.flow_s,
            low=first.low + other.low,
            high=first.high + other.high,
        )
    return _called(first, recipe, item, cluster)


def _between_s(program: Program, table: CostTable) -> tuple[float, ...]:
    """What each rank's thread does between the instructions of a step, where that was measured [s]."""
    if table.between is None:
        return ()
    return tuple(table.between.of(len(instructions)) for instructions in program.ranks)


def _copies_s(program: Program, recipe: ExchangeRecipe, machine: Machine, tensors: Sequence[int]) -> tuple[float, ...]:
    """Copies of gradients into buffers of calls and out of them, of each rank of a step [s]."""
    sizes = [sum(item.nbytes for item in instructions if _is_gradients(item)) for instructions in program.ranks]
    return tuple(
        handling_s(recipe, machine, tensors=count, nbytes=nbytes) if nbytes else 0.0
        for count, nbytes in zip(tensors, sizes, strict=True)
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
        fit = step.update_at(microbatch) if kind == Kind.UPDATE else step.clip
        return fit.at(tensors=state.updated_tensors, nbytes=state.updated)
    if instruction.segment is None or instruction.segment >= len(segments):
        raise InputError(f'{instruction.id}: "{kind}" needs a segment of 0 to {len(segments) - 1}')
    steps = segments[instruction.segment].steps
    if kind in steps:
        return steps[kind]
    if kind == Kind.RECOMPUTE:
        return steps[Kind.FORWARD]
    raise InputError(f'{instruction.id}: no measured cost for "{kind}"', code="pricing.not-measured", kind=str(kind))


def _add_sums(program: Program, compute: dict[str, Cost], sums: Sequence[Cost]) -> None:
    """Add the time in which a further microbatch adds its gradients to those of earlier ones."""
    for instructions in program.ranks:
        seen: set[int | None] = set()
        for item in instructions:
            if item.kind not in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                continue
            if item.segment in seen and item.segment is not None:
                compute[item.id] = add((compute[item.id], sums[item.segment]), source=compute[item.id].source)
            seen.add(item.segment)


def _add_calls(program: Program, compute: dict[str, Cost], handling: Mapping[str, float]) -> None:
    """Add the time in which a backward hands its gradients over to their owners.

    A backward that ran under DDP has its few calls in its measured time; with owners there is one a bucket, or one a
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


def _interference(program: Program, table: CostTable, recipe: ExchangeRecipe | None) -> Interference:
    """The factors of the kind of transfer that moves most bytes; messages and collectives differ.

    On a machine of the catalog those of collectives are the framework's, at the end that is asked for. Measured queues
    of reductions to owners go as fast next to compute as alone, as each is posted after some.
    """
    moved = {SEND: 0, str(Kind.ALL_REDUCE): 0}
    for instruction in program:
        if instruction.communicates:
            moved[str(Kind.ALL_REDUCE) if instruction.group else SEND] += instruction.nbytes
    kinds = sorted(moved, key=lambda kind: -moved[kind])
    found = [table.interference[kind] for kind in kinds if moved[kind] and kind in table.interference]
    if found and recipe is not None and found[0] is table.interference.get(str(Kind.ALL_REDUCE)):
        return replace(found[0], compute=recipe.interference)
    reduces = [item for item in program if item.kind == Kind.REDUCE and item.communicates]
    if found and reduces and has_queues(table, len(reduces[0].group)):
        return replace(found[0], communication=1.0, latency=1.0)
    return found[0] if found else Interference()


def _completions(
    graph: Graph, strategy: Strategy, operations: Mapping[str, OpCost]
) -> Mapping[tuple[int, str, str], float]:
    """Where buckets are complete inside the backward of an operation with many parameters.

    Returns:
        The fraction of the operation's backward, by segment, bucket and operation; what is not there, as with several
        segments, is complete at the end of the operation.
    """
    if strategy.dp == 1 or strategy.pp > 1 or strategy.parts:
        return {}
    ready = {
        op.id: dict(zip(op.parameters, operations[op.id].complete, strict=True))
        for op in graph.ops
        if operations[op.id].complete
    }
    found = {}
    without = own_parameters(graph, strategy)
    for bucket in gradient_buckets(graph, graph.ops, strategy.bucket_bytes, without=without) if ready else ():
        inside = ready.get(bucket.op, {})
        places = [inside[name] for name in bucket.parameters if name in inside]
        if places:
            found[0, bucket.label, bucket.op] = max(places)
    return found


def _marks(
    program: Program,
    segments: Sequence[SegmentCost],
    completions: Mapping[tuple[int, str, str], float],
    *,
    overlaps: bool,
) -> dict[tuple[str, str], float]:
    marks: dict[tuple[str, str], float] = {}
    for instruction in program:
        if not instruction.marks:
            continue
        places: Mapping[str, tuple[float, float]] = {}
        if instruction.segment is not None:
            places = segments[instruction.segment].places.get(instruction.kind, {})
        # Of these the instruction itself waits for the end, so that nothing may put off their start.
        awaited = {mark.name.removesuffix(".wait") for mark in instruction.marks if mark.waits_for}
        for mark in instruction.marks:
            if mark.op not in places:
                raise InputError(
                    f'{instruction.id}: mark "{mark.name}" is at operation "{mark.op}", which is not in its segment',
                    op=mark.op,
                )
            before, after = places[mark.op]
            place = before if mark.before else after
            if instruction.kind is Kind.BACKWARD and instruction.segment is not None:
                done = completions.get((instruction.segment, mark.name, mark.op))
                place = place if done is None else before + done * (after - before)
            marks[instruction.id, mark.name] = place if overlaps or mark.name.removesuffix(".wait") in awaited else 1.0
    return marks


def can_fold(program: Program, strategy: Strategy, table: CostTable, cluster: Allocation) -> bool:
    """Whether the simulation of the first replica, or of the first node of them, gives the times of all.

    Args:
        program: the lists of the first replica, or node (`program.lowering.lower.lower_replica`)
        strategy: how many replicas there are, and on which devices
        table: measured costs
        cluster: the devices

    Returns:
        False also where owners make replicas differ.
    """
    if strategy.dp == 1 or strategy.sync == "p2p":
        return False
    cluster = cluster.ordered(strategy.device_order)
    if len({(device.kind, device.title) for device in cluster.devices[: strategy.devices]}) > 1:
        return False
    size = len(program.ranks)
    return all(_is_alike(item, size, strategy, table, cluster) for item in _within(program, size))


def _within(program: Program, size: int) -> list[Instruction]:
    """Transfers within a replica or node: one instruction for each pair or group and size."""
    found: dict[tuple[object, ...], Instruction] = {}
    for item in program:
        if item.peer is not None or (item.group and item.group[-1] < size):
            found.setdefault((item.kind, item.rank if item.peer is not None else None, item.peer, item.group), item)
    return list(found.values())


def _is_alike(item: Instruction, size: int, strategy: Strategy, table: CostTable, cluster: Allocation) -> bool:
    taken: set[str] = set()
    first = transfer_cost(item, table, cluster)
    for shift in range(0, strategy.devices, size):
        moved = replace(
            item,
            rank=item.rank + shift,
            peer=None if item.peer is None else item.peer + shift,
            group=tuple(rank + shift for rank in item.group),
            root=None if item.root is None else item.root + shift,
        )
        found = transfer_cost(moved, table, cluster)
        same = (found.latency_s, found.flow_s) == (first.latency_s, first.flow_s)
        if not same or not taken.isdisjoint(found.links):
            return False
        taken.update(found.links)
    return True
