"""Bytes that come and go within a step.

What a microbatch needs lives from the start of its forward to the end of its backward: the storages that autograd
keeps, the tensors that were received, and those that other segments read. While an operation runs, what it makes and
does not keep is there too: the largest such amount lives for as long as the forward or backward that contains it. So
does what is gathered of parameters that replicas share. Of a backward in two halves the first frees all but what the
second needs: the inputs of layers whose weights have their gradients put off, and the gradients of their outputs.

A storage that a segment keeps but did not make is one that it received, and is counted there. Where what another
segment reads shares its storage with a kept tensor of another name (the result of an in-place operation), it is
counted twice. Left out: the allocator's own rounding and fragments, and the workspaces of kernels.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.costs.halves import put_off, weight_shares
from trimaran.costs.sharded import Shares
from trimaran.costs.zero import zero_bytes
from trimaran.graph.types import Graph, Op, TensorSpec
from trimaran.program.segments import segment_ops
from trimaran.program.types import Instruction, Kind, Program, Strategy

_Change = tuple[int, int]

# A backward that is split ends with the gradients of the weights.
_LAST_BACKWARDS = frozenset({Kind.BACKWARD, Kind.BACKWARD_WEIGHT})
_COMPUTES = frozenset({Kind.FORWARD, Kind.EVALUATE, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT})


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMemory:
    """Bytes of one segment and microbatch.

    Attributes:
        kept: from a microbatch's forward to its backward: saved storages and tensors that other segments read, without
            what was received [bytes]
        forward_peak: beside them while the forward runs [bytes]
        backward_peak: beside them while the backward runs [bytes]
        evaluation_peak: while the forward runs without gradients [bytes]
        put_off: of what is kept, what is needed until the weights have their gradients [bytes]
        put_off_gradients: gradients of outputs from the first half of the backward to the second [bytes]
    """

    kept: int
    forward_peak: int
    backward_peak: int
    evaluation_peak: int
    put_off: int = 0
    put_off_gradients: int = 0


def segment_memory(graph: Graph, strategy: Strategy, *, batch: int) -> tuple[SegmentMemory, ...]:
    """Bytes of each segment of a strategy.

    Args:
        graph: the network
        strategy: where it is cut
        batch: samples of a microbatch

    Returns:
        One entry a segment.
    """
    parts = segment_ops(graph, strategy)
    crossing = graph.exchanged(parts)
    weights = weight_shares(graph, execution=strategy.execution)
    shares = Shares(graph, strategy)
    memory = []
    for number, ops in enumerate(parts):
        writes = {spec.name: spec for (source, _), specs in crossing.items() if source == number for spec in specs}
        segment = _one_segment(graph, ops, tuple(writes.values()), put_off(ops, weights), shares, batch)
        memory.append(_beside(segment, zero_bytes(graph, ops, strategy).gathered if strategy.zero else 0))
    return tuple(memory)


def memory_changes(program: Program, segments: Sequence[SegmentMemory]) -> dict[str, _Change]:
    """What lives and dies with each instruction.

    Args:
        program: what each rank does
        segments: bytes of each segment

    Returns:
        For each instruction id, bytes that live from its start on, and bytes that die at its end. What lives in a step
        also dies in it.
    """
    changes: dict[str, _Change] = {}
    for instructions in program.ranks:
        changes.update(_rank_changes(instructions, segments))
    return changes


def _rank_changes(instructions: Sequence[Instruction], segments: Sequence[SegmentMemory]) -> dict[str, _Change]:
    changes: dict[str, _Change] = {}
    moved = _moved(instructions)
    trained = {(item.segment, item.microbatch) for item in instructions if item.kind in _LAST_BACKWARDS}
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
        # Without a backward nothing is kept, and what is sent lives until it is sent.
        sent = moved.get((Kind.SEND_FORWARD, *where), 0)
        return memory.evaluation_peak + sent, memory.evaluation_peak + received
    left = memory.put_off + memory.put_off_gradients
    if kind == Kind.BACKWARD_WEIGHT:
        return memory.backward_peak, memory.backward_peak + left + received + gradients
    sent = moved.get((Kind.SEND_BACKWARD, *where), 0)
    if kind == Kind.BACKWARD_INPUT:
        made = memory.backward_peak + memory.put_off_gradients + sent
        return made, memory.backward_peak + memory.kept - memory.put_off
    return memory.backward_peak + sent, memory.backward_peak + memory.kept + received + gradients


def _moved(instructions: Sequence[Instruction]) -> dict[tuple[Kind, int, int], int]:
    moved: dict[tuple[Kind, int, int], int] = {}
    for item in instructions:
        if item.segment is not None and item.microbatch is not None:
            key = (item.kind, item.segment, item.microbatch)
            moved[key] = moved.get(key, 0) + item.nbytes
    return moved


def _beside(memory: SegmentMemory, gathered: int) -> SegmentMemory:
    """With bytes of gathered parameters there while anything runs."""
    return replace(
        memory,
        forward_peak=memory.forward_peak + gathered,
        backward_peak=memory.backward_peak + gathered,
        evaluation_peak=memory.evaluation_peak + gathered,
    )


def _one_segment(
    graph: Graph, ops: Sequence[Op], writes: Sequence[TensorSpec], later: Sequence[Op], shares: Shares, batch: int
) -> SegmentMemory:
    made = {spec.name: spec for op in ops for spec in op.outputs}
    saved = {name for op in ops for name in op.saved}
    fed = {spec.name for spec in graph.inputs}
    own = {name for name in saved if name in made or name in fed or _is_inner(name, ops)}
    share: dict[str, float] = {}
    for op in ops:
        for name in op.saved:
            share[name] = max(share.get(name, 0.0), shares.saved(op))
    kept = {name: graph.storages[name].at(batch) * share[name] for name in own}
    needed = {name for op in later for name in op.inputs if name in own}
    gradients = sum(spec.nbytes.at(batch) for op in later for spec in op.outputs if spec.requires_grad)
    put_off_bytes = round(sum(kept[name] for name in needed))
    kept |= {spec.name: spec.nbytes.at(batch) for spec in writes}
    return SegmentMemory(
        kept=round(sum(kept.values())),
        forward_peak=max((_passing(op, saved, batch) for op in ops), default=0),
        backward_peak=max((_gradients(op, made, batch) for op in ops), default=0),
        evaluation_peak=max((_passing(op, (), batch) + _inputs(op, made, batch) for op in ops), default=0),
        put_off=put_off_bytes,
        put_off_gradients=round(gradients),
    )


def _is_inner(name: str, ops: Sequence[Op]) -> bool:
    """Whether a storage is one that no tensor of the graph names: `<operation>/<number>`, kept by that operation."""
    owner, slash, _ = name.rpartition("/")
    return bool(slash) and any(op.id == owner for op in ops)


def _passing(op: Op, saved: Collection[str], batch: int) -> int:
    return round(sum(spec.nbytes.at(batch) for spec in op.outputs if spec.name not in saved))


def _inputs(op: Op, made: dict[str, TensorSpec], batch: int) -> int:
    return round(sum(made[name].nbytes.at(batch) for name in op.inputs if name in made))


def _gradients(op: Op, made: dict[str, TensorSpec], batch: int) -> int:
    outputs = sum(spec.nbytes.at(batch) for spec in op.outputs if spec.requires_grad)
    inputs = sum(made[name].nbytes.at(batch) for name in op.inputs if name in made and made[name].requires_grad)
    return round(outputs + inputs)
