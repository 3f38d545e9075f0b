"""Bytes that are allocated and freed within a step.

The memory of a microbatch lives from the start of its forward to the end of its backward: the storages that autograd
keeps, the tensors that were received, and those that other segments read. While a backward runs, what it has used is
gone, so that its peak is counted operation by operation. An operation also allocates tensors that it
does not keep: the largest such amount lives for as long as the forward or backward that contains it. So do gathered
parameters that replicas shard. In a split backward, dgrad frees everything that wgrad does not need: wgrad needs the
inputs of its layers and the gradients of their outputs.

A storage that a segment keeps but did not allocate is one that it received, and is counted there. A tensor that another
segment reads may share its storage with a kept tensor of another name (the result of an in-place operation): it is then
counted twice. Left out: the allocator's own rounding and fragments, and the workspaces of kernels.

Bytes that a rank holds where parameters, gradients or optimizer state are sharded over the replicas.

Shards stay in memory for the whole step, gathered units do not: FSDP2 gathers a unit into one flat tensor and copies it
into the parameters; in the backward the gradients of a unit are whole until they have been copied into another flat
tensor, which is scattered:

    backward of unit k     parameters of k │ gradients of k │ gathered k-1, flat │ scattered k+1, flat
    in addition           the root: its parameters, and its gradients until the end

Left out: activations, and the allocator's own rounding.

Share of each operation that one rank of a tensor-parallel group computes and keeps.

An operation inside a sharded region does its share of the work on its share of the tensors; every rank computes the
whole of an operation outside. A share of a kernel takes its share of the time. Left out: no kernel is shorter than its
launch, so small operations gain less than their share.

Memory of a rank for compressed gradients.

    error feedback    the error of each gradient in a step, in 32 bits, until the next step adds it
    PowerSGD          of each gradient matrix, the thin one from which the next step starts
    any               the sent bytes, from the encoding of a bucket to its decoding

Source:
    Vogels et al., NeurIPS 2019, algorithm 2: the memory of errors, and the right factor that starts the next step.

Resident bytes: parameters, their gradients, the state of the optimizer, buffers.

A parameter that several segments of a rank use is counted once. With one segment a rank holds the user's whole model,
including parameters that no captured operation reads.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from trimaran.graph.sharding.fsdp_units import unit_ops, unit_parameters
from trimaran.graph.trace.live_bytes import largest
from trimaran.graph.types import Graph, Op, Parameter, TensorSpec, of_graph
from trimaran.pricing.compute import put_off, weight_shares
from trimaran.program.gradients import SMALLEST_BYTES, Compression, gradient_buckets
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.lowering.schedules import COMPLETING, PASSING_BACK, Compute, stashed_versions
from trimaran.program.lowering.tensor_parallel import chosen_regions, chosen_stream, sharded_bytes, share_of
from trimaran.program.lowering.zero import after_update, padded_bytes, shard_bytes
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction, Kind, Program


def gathered_bytes(graph: Graph, ops: Sequence[Op], strategy: Strategy) -> int:
    """Most that a segment has in addition to its shards while something is gathered or not yet scattered [bytes].

    Args:
        graph: the network
        ops: operations of the segment
        strategy: the chosen one; where parameters and gradients are whole, there is nothing to gather
    """
    if not _has_shards(strategy):
        return 0
    return max(_moments(graph, ops, strategy, _held(graph, ops, strategy)))


def _has_shards(strategy: Strategy) -> bool:
    return strategy.zero >= 2 and strategy.dp > 1


def _held(graph: Graph, ops: Sequence[Op], strategy: Strategy) -> list[Parameter]:
    used = {name for op in ops for name in op.parameters}
    return [parameter for parameter in graph.parameters if strategy.segments == 1 or parameter.name in used]


def _moments(graph: Graph, ops: Sequence[Op], strategy: Strategy, held: Sequence[Parameter]) -> list[int]:
    """Bytes in addition to the shards, at each moment of a step that may be the worst.

    Shards of gradients count as there all the time. In the only microbatch those of units whose backward is still to
    come are not there yet; in a later one of several the new ones come on top of those of the earlier ones.
    """
    here = {parameter.name for parameter in held}
    order = ["", *unit_ops(ops, strategy.units)]
    units = unit_parameters(graph, strategy.units)
    owned = [[parameter for parameter in units[unit] if parameter.name in here] for unit in order]
    trained = [[parameter for parameter in parameters if parameter.trainable] for parameters in owned]
    whole = [padded_bytes(parameters, strategy.dp) for parameters in owned]
    gradients = [padded_bytes(parameters, strategy.dp) for parameters in trained]
    several = strategy.microbatches > 1
    freed = strategy.zero == 3
    last = len(order) - 1
    found = [whole[0]]
    for number in range(1, len(order)):
        kept = whole[0] + (whole[number] if freed else sum(whole[1 : number + 1]))
        # Its own flat tensor while it is copied, then the next one's.
        found.append(kept + max(whole[number], whole[number + 1] if number < last else 0))
    if not several:
        found = [nbytes - sum(gradients) // strategy.dp for nbytes in found]
    for number in range(last, -1, -1):
        # Units that are not freed after their forward are freed after their last backward.
        kept = whole[0] + gradients[0] + sum(_gathered(whole, number, freed=freed, several=several))
        own = gradients[number] if number else 0
        ahead = whole[number - 1] if freed and number > 1 else 0
        behind = gradients[number + 1] if number < last else 0
        shards = sum(gradients[number + 1 :]) if several else -sum(gradients[: number + 1])
        found.append(kept + own + ahead + behind + shards // strategy.dp)
    # The root's gradients, and the flat tensor that they are scattered from.
    shards = sum(gradients[1:]) if several else -gradients[0]
    found.append((sum(whole[1:]) if several and not freed else 0) + 2 * gradients[0] + shards // strategy.dp)
    return [max(nbytes, 0) for nbytes in found]


def _gathered(whole: Sequence[int], number: int, *, freed: bool, several: bool) -> Sequence[int]:
    """The units that are whole in the backward of one of them, the root aside [bytes]."""
    if freed:
        return whole[max(number, 1) : number + 1]
    return whole[1:] if several else whole[1 : number + 1]


class Shares:
    """The shares of one rank, by operation.

    Args:
        graph: the network
        strategy: says what is sharded
    """

    def __init__(self, graph: Graph, strategy: Strategy) -> None:
        self._compute: dict[str, float] = {}
        self._saved: dict[str, float] = {}
        if strategy.tp == 1:
            return
        parts = dict.fromkeys(chosen_stream(graph, strategy).ops, 1 / strategy.tp)
        self._compute |= parts
        self._saved |= parts
        for region in chosen_regions(graph, strategy):
            share = share_of(region, strategy.tp)
            self._compute |= dict.fromkeys((*region.columns, *region.inside), share)
            self._saved |= dict.fromkeys(region.inside, share)
            if region.kind != "embedding":
                # A lookup reads the same number of rows as without sharding; those of other ranks are zeros.
                self._compute |= dict.fromkeys(region.rows, share)
                self._saved |= dict.fromkeys(set(region.rows) - set(region.columns), share)

    def compute(self, op: Op) -> float:
        """The part of an operation's work that a rank does [0..1]."""
        return self._compute.get(op.id, 1.0)

    def saved(self, op: Op) -> float:
        """The part of an operation's saved tensors that a rank keeps [0..1]."""
        return self._saved.get(op.id, 1.0)


_Change = tuple[int, int]

# A backward that is split ends with the gradients of the weights.
_COMPUTES = frozenset({Kind.FORWARD, Kind.EVALUATE, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT})


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMemory:
    """Bytes of one segment and microbatch.

    Attributes:
        kept: from a microbatch's forward to its backward: saved storages and tensors that other segments read, without
            received tensors [bytes]
        forward_peak: in addition while the forward runs [bytes]
        backward_peak: in addition while the backward runs, which frees what it has used [bytes]
        split_peak: in addition while dgrad runs, which frees nothing before its end [bytes]
        evaluation_peak: while the forward runs without gradients [bytes]
        put_off: the part of `kept` that wgrad needs [bytes]
        put_off_gradients: gradients of outputs from dgrad to wgrad [bytes]
    """

    kept: int
    forward_peak: int
    backward_peak: int
    split_peak: int
    evaluation_peak: int
    put_off: int = 0
    put_off_gradients: int = 0


def segment_memory(
    graph: Graph, strategy: Strategy, *, batch: int, traced_bytes: int | None = None
) -> tuple[SegmentMemory, ...]:
    """Bytes of each segment of a strategy.

    Args:
        graph: the network
        strategy: where it is split
        batch: samples of a microbatch
        traced_bytes: of a network in one segment, what its traced step needs besides the state; None: it was not
            traced, so that it is counted operation by operation [bytes]

    Returns:
        One entry a segment.
    """
    memory = []
    for segment, ops in zip(_of_operations(graph, strategy, batch), segment_ops(graph, strategy), strict=True):
        if traced_bytes is not None:
            segment = _as_traced(segment, traced_bytes)
        memory.append(_with_gathered(segment, gathered_bytes(graph, ops, strategy)))
    return tuple(memory)


def _of_operations(graph: Graph, strategy: Strategy, batch: int) -> tuple[SegmentMemory, ...]:
    """Bytes of each segment, counted operation by operation: the same for strategies that split and share alike."""
    shards = strategy.shards if strategy.tp > 1 else ()
    key = (strategy.boundaries, strategy.parts, strategy.tp, shards, strategy.execution, batch)
    known = _known_segments(graph)
    if key not in known:
        parts = segment_ops(graph, strategy)
        crossing = graph.exchanged(parts)
        weights = weight_shares(graph, execution=strategy.execution)
        shares = Shares(graph, strategy)
        memory = []
        for number, ops in enumerate(parts):
            writes = {spec.name: spec for (source, _), specs in crossing.items() if source == number for spec in specs}
            memory.append(_one_segment(graph, ops, tuple(writes.values()), put_off(ops, weights), shares, batch))
        known[key] = tuple(memory)
    return known[key]


@of_graph
def _known_segments(graph: Graph) -> dict[tuple[object, ...], tuple[SegmentMemory, ...]]:
    """What is known of the segments of a graph, by how it is split and shared."""
    del graph
    return {}


def memory_changes(program: Program, segments: Sequence[SegmentMemory]) -> dict[str, _Change]:
    """Bytes that each instruction allocates and frees.

    Args:
        program: instructions of each rank
        segments: bytes of each segment

    Returns:
        For each instruction id, bytes that live from its start on, and bytes that die at its end. A step frees
        everything that it allocates.
    """
    changes: dict[str, _Change] = {}
    for instructions in program.ranks:
        changes.update(_rank_changes(instructions, segments))
    return changes


def _rank_changes(instructions: Sequence[Instruction], segments: Sequence[SegmentMemory]) -> dict[str, _Change]:
    changes: dict[str, _Change] = {}
    moved = _moved(instructions)
    trained = {(item.segment, item.microbatch) for item in instructions if item.kind in COMPLETING}
    for item in instructions:
        if item.segment is None or item.microbatch is None:
            continue
        where = (item.segment, item.microbatch)
        if item.kind in (Kind.RECEIVE_FORWARD, Kind.RECEIVE_BACKWARD):
            changes[item.id] = (item.nbytes, 0)
        elif item.kind == Kind.SEND_BACKWARD or (item.kind == Kind.SEND_FORWARD and where not in trained):
            changes[item.id] = (0, item.nbytes)
        elif item.kind in _COMPUTES:
            changes[item.id] = _compute_change(item.kind, where, segments[item.segment], moved)
    return changes


def _compute_change(
    kind: Kind, where: tuple[int, int], memory: SegmentMemory, moved: Mapping[tuple[Kind, int, int], int]
) -> _Change:
    received = moved.get((Kind.RECEIVE_FORWARD, *where), 0)
    gradients = moved.get((Kind.RECEIVE_BACKWARD, *where), 0)
    if kind == Kind.FORWARD:
        return memory.kept + memory.forward_peak, memory.forward_peak
    if kind == Kind.EVALUATE:
        # Without a backward nothing is kept, and an output that is sent lives until then.
        sent = moved.get((Kind.SEND_FORWARD, *where), 0)
        return memory.evaluation_peak + sent, memory.evaluation_peak + received
    left = memory.put_off + memory.put_off_gradients
    if kind == Kind.BACKWARD_WEIGHT:
        return memory.backward_peak, memory.backward_peak + left + received + gradients
    sent = moved.get((Kind.SEND_BACKWARD, *where), 0)
    if kind == Kind.BACKWARD_INPUT:
        made = memory.split_peak + memory.put_off_gradients + sent
        return made, memory.split_peak + memory.kept - memory.put_off
    return memory.backward_peak + sent, memory.backward_peak + memory.kept + received + gradients


def highest_bytes(
    order: Sequence[Compute], segments: Sequence[SegmentMemory], moved: Mapping[tuple[Kind, int], int]
) -> int:
    """Most that the passes of a row have at once, in order, where each message comes as late as it may [bytes].

    Args:
        order: passes of the row
        segments: bytes of each segment
        moved: of each kind of message and each segment, for one microbatch [bytes]
    """
    messages = {(kind, segment, 0): nbytes for (kind, segment), nbytes in moved.items()}
    alive = most = 0
    for step in order:
        born, freed = _compute_change(step.kind, (step.segment, 0), segments[step.segment], messages)
        if step.kind == Kind.FORWARD:
            alive += moved.get((Kind.RECEIVE_FORWARD, step.segment), 0)
        elif step.kind in PASSING_BACK:
            alive += moved.get((Kind.RECEIVE_BACKWARD, step.segment), 0)
            freed += moved.get((Kind.SEND_BACKWARD, step.segment), 0)
        most = max(most, alive + born)
        alive += born - freed
    return most


def _moved(instructions: Sequence[Instruction]) -> dict[tuple[Kind, int, int], int]:
    moved: dict[tuple[Kind, int, int], int] = {}
    for item in instructions:
        if item.segment is not None and item.microbatch is not None:
            key = (item.kind, item.segment, item.microbatch)
            moved[key] = moved.get(key, 0) + item.nbytes
    return moved


def _with_gathered(memory: SegmentMemory, gathered: int) -> SegmentMemory:
    """With bytes of gathered parameters there while anything runs."""
    return replace(
        memory,
        forward_peak=memory.forward_peak + gathered,
        backward_peak=memory.backward_peak + gathered,
        split_peak=memory.split_peak + gathered,
        evaluation_peak=memory.evaluation_peak + gathered,
    )


def _as_traced(memory: SegmentMemory, traced_bytes: int) -> SegmentMemory:
    """With the peak of a traced step, which its backward reaches."""
    kept = min(memory.kept, traced_bytes)
    return replace(
        memory,
        kept=kept,
        forward_peak=min(memory.forward_peak, traced_bytes - kept),
        backward_peak=traced_bytes - kept,
    )


def _one_segment(
    graph: Graph, ops: Sequence[Op], writes: Sequence[TensorSpec], later: Sequence[Op], shares: Shares, batch: int
) -> SegmentMemory:
    made = {spec.name: spec for op in ops for spec in op.outputs}
    saved = {name for op in ops for name in op.saved}
    fed = {spec.name for spec in graph.inputs}
    members = {op.id for op in ops}
    own = {name for name in saved if name in made or name in fed or _is_inner(name, members)}
    share: dict[str, float] = {}
    for op in ops:
        for name in op.saved:
            share[name] = max(share.get(name, 0.0), shares.saved(op))
    kept = {name: graph.kept_storages[name].at(batch) * share[name] for name in own}
    needed = {name for op in later for name in op.inputs if name in own}
    gradients = sum(spec.nbytes.at(batch) for op in later for spec in op.outputs if spec.requires_grad)
    put_off_bytes = round(sum(kept[name] for name in needed))
    first = {name: number for number in range(len(ops) - 1, -1, -1) for name in ops[number].saved}
    freed = [0.0] * (len(ops) + 1)
    for name, nbytes in kept.items():
        # The backward of the first operation that keeps it is the last that reads it.
        freed[first[name]] += nbytes
    kept |= {spec.name: spec.nbytes.at(batch) for spec in writes}
    gone = list(accumulate(reversed(freed)))[::-1]
    forward = [_passing(op, saved, batch) for op in ops]
    backward = [_gradients(op, made, batch) for op in ops]
    if graph.passing:
        traced = [graph.passing.get(op.id, ((), ())) for op in ops]
        forward, backward = ([largest(one[way], batch) for one in traced] for way in (0, 1))
    return SegmentMemory(
        kept=round(sum(kept.values())),
        forward_peak=max(forward, default=0),
        backward_peak=max((round(own - gone[number + 1]) for number, own in enumerate(backward)), default=0),
        split_peak=max(backward, default=0),
        evaluation_peak=max((_passing(op, (), batch) + _inputs(op, made, batch) for op in ops), default=0),
        put_off=put_off_bytes,
        put_off_gradients=round(gradients),
    )


def _is_inner(name: str, ops: Collection[str]) -> bool:
    """Whether a storage is one that no tensor of the graph names: `<operation>/<number>`, kept by that operation."""
    owner, slash, _ = name.rpartition("/")
    return bool(slash) and owner in ops


def _passing(op: Op, saved: Collection[str], batch: int) -> int:
    return round(sum(spec.nbytes.at(batch) for spec in op.outputs if spec.name not in saved))


def _inputs(op: Op, made: dict[str, TensorSpec], batch: int) -> int:
    return round(sum(made[name].nbytes.at(batch) for name in op.inputs if name in made))


def _gradients(op: Op, made: dict[str, TensorSpec], batch: int) -> int:
    outputs = sum(spec.nbytes.at(batch) for spec in op.outputs if spec.requires_grad)
    inputs = sum(made[name].nbytes.at(batch) for name in op.inputs if name in made and made[name].requires_grad)
    return round(outputs + inputs)


_NUMBER_BYTES = 4


def kept_bytes(compression: Compression | None, parameters: Sequence[Parameter]) -> int:
    """Bytes that compression keeps from one step to the next; none for gradients of 16 bits, which are not compressed.

    Args:
        compression: of the gradients; None: uncompressed
        parameters: whose gradients this rank sends

    Example:
        Of a matrix of 64 by 32, 2,048 errors; with rank 2 also 2 · 32 numbers. Of its bias nothing is lost.

        >>> matrix = Parameter(name="weight", shape=(64, 32), dtype="float32", nbytes=8192)
        >>> bias = Parameter(name="bias", shape=(64,), dtype="float32", nbytes=256)
        >>> kept_bytes(Compression(method="powersgd", rank=2), [matrix, bias])
        8448
        >>> kept_bytes(Compression(method="bf16"), [matrix, bias])
        8448
    """
    if compression is None:
        return 0
    numbers = 0
    for parameter in parameters:
        whole = math.prod(parameter.shape)
        if not parameter.trainable or parameter.nbytes < SMALLEST_BYTES * whole:
            continue
        if compression.method != "powersgd":
            numbers += whole
        elif compression.factors(parameter.shape):
            rows = parameter.shape[0]
            numbers += whole + min(compression.rank, rows, whole // rows) * (whole // rows)
    return _NUMBER_BYTES * numbers


def with_wire_buffers(
    memory: Mapping[str, tuple[int, int]], program: Program, coded: Collection[str]
) -> dict[str, tuple[int, int]]:
    """Bytes that each instruction allocates and frees, with compressed buckets: from their encoding to the update.

    Args:
        memory: without [bytes]
        program: one step
        coded: ids of the all-reduces of compressed buckets
    """
    found = dict(memory)
    if not coded:
        return found
    for instructions in program.ranks:
        alive = 0
        for item in instructions:
            if item.id in coded:
                found[item.id] = (item.nbytes, 0)
                alive += item.nbytes
            elif item.kind is Kind.UPDATE:
                born, died = found.get(item.id, (0, 0))
                found[item.id] = (born, died + alive)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """State of one rank.

    Attributes:
        parameters: bytes of its parameters [bytes]
        trained: bytes of those that have a gradient [bytes]
        trained_tensors: number of those that have a gradient
        updated: bytes of the parameters that this rank updates; it owns them where parameters have owners [bytes]
        updated_tensors: number of those
        buffers: bytes of its buffers, such as running statistics [bytes]
        kept: by the compression of gradients from one step to the next, and earlier versions of parameters that passes
            under way still need [bytes]
    """

    parameters: int
    trained: int
    trained_tensors: int
    updated: int
    updated_tensors: int
    buffers: int
    kept: int = 0

    def resident_bytes(self, *, state_bytes_per_byte: float) -> int:
        """Parameters, gradients, optimizer state, buffers and errors of compression, together [bytes].

        Args:
            state_bytes_per_byte: state that the optimizer keeps for a byte of parameter that it updates [bytes/byte]

        Example:
            >>> counts = {"trained_tensors": 2, "updated_tensors": 1}
            >>> state = RankState(parameters=100, trained=80, updated=60, buffers=5, **counts)
            >>> state.resident_bytes(state_bytes_per_byte=2.0)  # 100 + 80 + 2 * 60 + 5
            305
        """
        state = round(self.updated * state_bytes_per_byte)
        return self.parameters + self.trained + state + self.buffers + self.kept


def rank_states(program: Program, graph: Graph, strategy: Strategy) -> tuple[RankState, ...]:
    """State of each rank of a program.

    Args:
        program: says which segments a rank computes
        graph: the network
        strategy: where it is split
    """
    parts = segment_ops(graph, strategy)
    states: dict[frozenset[int], RankState] = {}
    overlaps = program.behind > 0
    found = []
    for rank, instructions in enumerate(program.ranks):
        segments = frozenset(item.segment for item in instructions if item.segment is not None)
        ops = [op for segment in sorted(segments) for op in parts[segment]]
        if segments not in states:
            states[segments] = held_state(graph, ops, strategy)
        reduces = [item for item in instructions if item.kind == Kind.REDUCE]
        state = _of_owner(states[segments], rank, reduces, graph, ops, strategy) if reduces else states[segments]
        if overlaps:
            # Of each pass under way but the last one, the weights that its backward needs are not those of now.
            state = replace(state, kept=state.kept + stashed_versions(strategy.pp, rank) * state.updated)
        found.append(state)
    return tuple(found)


def _of_owner(
    state: RankState, rank: int, reduces: Sequence[Instruction], graph: Graph, ops: Sequence[Op], strategy: Strategy
) -> RankState:
    """The state of a rank that updates only the parameters that it owns."""
    labels = {item.label for item in reduces if item.root_rank == rank}
    own = [bucket for bucket in gradient_buckets(graph, ops, strategy.bucket_bytes) if bucket.label in labels]
    return replace(
        state,
        updated=sum(bucket.nbytes for bucket in own),
        updated_tensors=sum(len(bucket.parameters) for bucket in own),
    )


def held_state(graph: Graph, ops: Sequence[Op], strategy: Strategy) -> RankState:
    """State of some operations on a rank, and the part that it updates.

    Args:
        graph: the network
        ops: of the segments of the rank
        strategy: says what is sharded
    """
    shards = sharded_bytes(graph, strategy)
    parameters = [
        replace(parameter, nbytes=shards[parameter.name]) if parameter.name in shards else parameter
        for parameter in _held(graph, ops, strategy)
    ]
    trained = [parameter for parameter in parameters if parameter.trainable]
    buffers = set(graph.buffers) if strategy.segments == 1 else {name for op in ops for name in op.buffers}

    def held(some: Sequence[Parameter]) -> int:
        """Bytes of parameters on this rank, the one with the largest shares."""
        return sum(shard_bytes(one, strategy.dp) if _has_shards(strategy) else one.nbytes for one in some)

    updated, updated_tensors = held(trained), len(trained)
    if strategy.zero == 1:
        handed = after_update(graph, ops, strategy, gradient_buckets(graph, ops, strategy.bucket_bytes))
        most = max(handed, key=lambda item: item.nbytes, default=None)
        updated, updated_tensors = (most.nbytes, len(most.parameters)) if most else (updated, updated_tensors)
    return RankState(
        parameters=held(parameters),
        trained=held(trained),
        trained_tensors=len(trained),
        updated=updated,
        updated_tensors=updated_tensors,
        buffers=sum(graph.buffers.get(name, 0) for name in buffers),
        kept=0 if strategy.zero else kept_bytes(strategy.compression, trained),
    )
