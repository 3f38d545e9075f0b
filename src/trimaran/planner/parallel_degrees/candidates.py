"""Every division of a task that can be built, in groups that share a bound.

Let `n` devices hold a stack of `L` layers and a batch of `B` sequences. A division has

    t p c d = n         ranks of a layer, stages, ranks of a sequence, replicas
    t | heads           and t within a node, unless said otherwise
    b | B / d           b sequences a microbatch, m = B / (d b) microbatches
    p v <= L            v chunks a stage; more than one only where p | m, so that chunks take equal turns
    sharding            what replicas divide: nothing, the optimizer, gradients too, parameters too
    recompute           no layers, or all (attention's probabilities, where its kernel keeps them)

Divisions that differ in `v`, sharding and layers of stages do the same work, so they share one bound: a group.

How many layers each stage holds: evenly, or with fewer at the ends, where the embedding and the head are.

The output layer costs the last stage as much as `w` layers. With layers of equal cost, the least load of the slowest
stage follows from giving each layer, one after another, to the stage that has least so far. Where stages have several
chunks, chunks must be equal, but for the first and the last one, which may have one layer less (as Megatron counts the
embedding and the loss as layers).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from trimaran.planner.parallel_degrees.problem import DivisionTask
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.pricing.analytical.stage_work import head_forward, layer_forward
from trimaran.pricing.analytical.stages import Division, Recomputed
from trimaran.program.strategy import ZeroStage


def layer_parts(
    shape: TransformerShape, pipeline: int, chunks: int, *, uneven: bool = True
) -> tuple[tuple[int, ...], ...]:
    """Choices of layers for each part of the stack; the empty one stands for equal parts.

    Args:
        shape: the network
        pipeline: stages
        chunks: parts of each
        uneven: parts may differ

    Returns:
        The choices; none where the stack cannot be cut so.

    Example:
        Eight layers and a head that costs two, on two stages: 4 and 4, or 5 and 3.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> layer_parts(gpt_shape(layers=8, hidden=1024, heads=16, vocabulary=24576), 2, 1)
        ((), (5, 3))
    """
    count = pipeline * chunks
    if count > shape.layers:
        return ()
    even = ((),) if shape.layers % count == 0 else ()
    if pipeline == 1 or not uneven:
        return even
    if chunks > 1:
        return even + tuple(_lighter_ends(shape.layers, count))
    weighed = _weighed(shape.layers, pipeline, head_weight(shape))
    return even if even and len(set(weighed)) == 1 else (*even, weighed)


def head_weight(shape: TransformerShape) -> float:
    """What the output layer costs, in layers."""
    whole = Division()
    layer = layer_forward(shape, whole, attention="fused", layer=shape.layers - 1)
    return head_forward(shape, whole).products / (layer.products + layer.attention)


def _lighter_ends(layers: int, count: int) -> list[tuple[int, ...]]:
    found = []
    for first, last in ((0, 1), (1, 1)):
        each, rest = divmod(layers + first + last, count)
        if rest == 0 and each > 1:
            found.append((each - first, *[each] * (count - 2), each - last))
    return found


def _weighed(layers: int, stages: int, head: float) -> tuple[int, ...]:
    counts = [1] * stages
    for _ in range(layers - stages):
        loads = [count + (head if stage == stages - 1 else 0.0) for stage, count in enumerate(counts)]
        counts[loads.index(min(loads))] += 1
    return tuple(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Divisions of one bound.

    Attributes:
        division: degrees, microbatch and what is computed again
    """

    division: Division


def groups(task: DivisionTask, rejected: Counter[str]) -> Iterator[Group]:
    """Groups of a task.

    Args:
        task: what is divided
        rejected: counts what cannot be built, by reason
    """
    pins, limits, shape = task.pins, task.limits, task.shape
    for tensor, pipeline, context in product(
        _degrees(task, pins.tp, "tp"), _degrees(task, pins.pp, "pp"), _degrees(task, pins.cp, "cp")
    ):
        model = tensor * pipeline * context
        if model > task.devices or task.devices % model:
            continue
        data = task.devices // model
        reason = _refused(task, tensor, pipeline, context, data)
        if reason:
            rejected[reason] += 1
            continue
        for microbatch in _divisors(task.batch // data):
            if pins.microbatch not in (None, microbatch):
                continue
            if pins.microbatch is None and microbatch > limits.most_microbatch:
                rejected[f"microbatches of more than {limits.most_microbatch} sequences"] += 1
                continue
            whole = Division(
                tp=tensor,
                pp=pipeline,
                cp=context,
                dp=data,
                expert_tp=1 if shape.experts is not None else None,
                microbatch=microbatch,
                microbatches=task.batch // (data * microbatch),
                sequence_parallel=tensor > 1 if pins.sequence_parallel is None else pins.sequence_parallel,
            )
            for expert, again in product(_experts(task, whole), _recomputed(task)):
                yield Group(division=replace(whole, ep=expert, recomputed=again))


def members(task: DivisionTask, group: Group) -> Iterator[Division]:
    """Divisions of a group: chunks, layers of stages, sharding."""
    division = group.division
    for chunks in _chunks(task, division):
        for parts in layer_parts(task.shape, division.pp, chunks, uneven="uneven" not in task.pins.forbid):
            for zero in _levels(task, division):
                yield replace(division, chunks=chunks, parts=parts, zero=zero)


def _degrees(task: DivisionTask, pinned: int | None, name: str) -> tuple[int, ...]:
    if pinned is not None:
        return (pinned,)
    return (1,) if task.pins.rules_out(name) else _divisors(task.devices)


def _refused(task: DivisionTask, tensor: int, pipeline: int, context: int, data: int) -> str:
    shape, limits, pins = task.shape, task.limits, task.pins
    if pins.dp not in (None, data) or (pins.rules_out("dp") and data > 1):
        return "another number of replicas is asked for"
    if task.batch % data:
        return "the batch does not divide over the replicas"
    if pipeline > shape.layers:
        return "more stages than layers"
    if shape.heads % tensor or shape.ffn % tensor or (shape.kv_heads % tensor and tensor % shape.kv_heads):
        return "heads or inner channels do not divide over tensor-parallel ranks"
    if tensor > task.machine.node.devices and not limits.across_nodes and pins.tp is None:
        return "tensor-parallel ranks on several nodes"
    if context > 1 and pins.cp is None and shape.sequence // context < limits.least_context:
        return f"less than {limits.least_context} tokens of a sequence on a rank"
    if context > 1 and shape.sequence % (2 * context):
        return "the sequence does not divide over the ranks"
    return ""


def _experts(task: DivisionTask, division: Division) -> tuple[int, ...]:
    shape, pins = task.shape, task.pins
    if shape.experts is None or pins.rules_out("ep"):
        return (1,)
    ranks = division.tp * division.cp * division.dp
    fitting = tuple(count for count in _divisors(shape.experts.count) if ranks % count == 0)
    return tuple(count for count in fitting if pins.ep in (None, count))


def _recomputed(task: DivisionTask) -> tuple[frozenset[Recomputed], ...]:
    nothing: frozenset[Recomputed] = frozenset()
    some: frozenset[Recomputed] = frozenset({"attention"})
    every: frozenset[Recomputed] = frozenset({"layers"})
    if task.pins.rules_out("memory") or task.pins.recompute is False:
        return (nothing,)
    if task.pins.recompute:
        return (every,)
    return (nothing, some, every) if task.program.attention == "unfused" else (nothing, every)


def _chunks(task: DivisionTask, division: Division) -> tuple[int, ...]:
    if task.pins.chunks is not None:
        return (task.pins.chunks,)
    plain = task.pins.schedule == "1f1b" or task.pins.rules_out("interleaved")
    if division.pp == 1 or plain or division.microbatches % division.pp:
        return (1,)
    most = min(task.limits.most_chunks, task.shape.layers // division.pp)
    return tuple(range(1, most + 1))


def _levels(task: DivisionTask, division: Division) -> tuple[ZeroStage, ...]:
    """Of ZeRO, that are tried."""
    if task.pins.zero is not None:
        return (task.pins.zero,)
    if task.pins.rules_out("zero") or division.dp * division.cp == 1:
        return (0,)
    return (0, 1, 2, 3)


def _divisors(number: int) -> tuple[int, ...]:
    """All of them, ascending.

    Example:
        >>> _divisors(12)
        (1, 2, 3, 4, 6, 12)
    """
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(sorted({*small, *(number // each for each in small)}))
