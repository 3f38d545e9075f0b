"""Bytes that a rank holds where parameters, gradients or optimizer state are sharded over the replicas.

Shards are there all the time. What is gathered comes and goes: FSDP2 gathers a unit into one flat tensor and copies it
into the parameters; in the backward the gradients of a unit are whole until they have been copied into another flat
tensor, which is scattered:

    backward of unit k     parameters of k │ gradients of k │ gathered k-1, flat │ scattered k+1, flat
    and beside it          the root: its parameters, and its gradients until the end

What is left out: activations, and the allocator's own rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.graph.types import Graph, Op, Parameter
from trimaran.graph.units import unit_ops, unit_parameters
from trimaran.program.buckets import gradient_buckets
from trimaran.program.padding import padded_bytes, shard_bytes
from trimaran.program.types import Strategy
from trimaran.program.zero import after_update


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedState:
    """What the rank that holds most of a segment has of it.

    Attributes:
        parameters: its share of the parameters [bytes]
        gradients: its share of the gradients [bytes]
        updated: bytes of parameters that it updates [bytes]
        updated_tensors: number of tensors that it updates
        gathered: most that is there beside them while something is gathered or not yet scattered [bytes]
    """

    parameters: int
    gradients: int
    updated: int
    updated_tensors: int
    gathered: int


def zero_bytes(graph: Graph, ops: Sequence[Op], strategy: Strategy) -> ShardedState:
    """What a rank holds of a segment.

    Args:
        graph: the network
        ops: operations of the segment
        strategy: what was decided; without sharding everything is whole

    Returns:
        Of the rank with the largest shares.
    """
    held = _held(graph, ops, strategy)
    trained = [parameter for parameter in held if parameter.trainable]
    whole = sum(parameter.nbytes for parameter in trained)
    if strategy.zero < 2 or strategy.dp == 1:
        handed = after_update(graph, ops, strategy, gradient_buckets(graph, ops, strategy.bucket_bytes))
        most = max(handed, key=lambda item: item.nbytes, default=None)
        return ShardedState(
            parameters=sum(parameter.nbytes for parameter in held),
            gradients=whole,
            updated=most.nbytes if most else whole,
            updated_tensors=len(most.parameters) if most else len(trained),
            gathered=0,
        )
    shards = sum(shard_bytes(parameter, strategy.dp) for parameter in trained)
    return ShardedState(
        parameters=sum(shard_bytes(parameter, strategy.dp) for parameter in held),
        gradients=shards,
        updated=shards,
        updated_tensors=len(trained),
        gathered=max(_moments(graph, ops, strategy, held)),
    )


def _held(graph: Graph, ops: Sequence[Op], strategy: Strategy) -> list[Parameter]:
    used = {name for op in ops for name in op.parameters}
    return [parameter for parameter in graph.parameters if strategy.segments == 1 or parameter.name in used]


def _moments(graph: Graph, ops: Sequence[Op], strategy: Strategy, held: Sequence[Parameter]) -> list[int]:
    """Bytes beside the shards, at each moment of a step that may be the worst.

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
        # What is not freed after its forward is freed after its last backward.
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
