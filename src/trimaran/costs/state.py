"""Bytes that are there all the time: parameters, their gradients, the state of the optimizer, buffers.

A parameter that several segments of a rank use is there once. With one segment a rank holds the user's whole model,
with what no captured operation reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimaran.costs.residuals import kept_bytes
from trimaran.costs.zero import zero_bytes
from trimaran.graph.types import Graph, Op
from trimaran.program.buckets import gradient_buckets
from trimaran.program.segments import segment_ops
from trimaran.program.sharded import sharded_bytes
from trimaran.program.types import Instruction, Kind, Program, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What one rank holds.

    Attributes:
        parameters: bytes of its parameters [bytes]
        trained: bytes of those that have a gradient [bytes]
        trained_tensors: number of those that have a gradient
        updated: bytes of the trained that this rank updates; with homes it is home to them [bytes]
        updated_tensors: number of those
        buffers: bytes of its buffers, such as running statistics [bytes]
        kept: by the compression of gradients from one step to the next [bytes]
    """

    parameters: int
    trained: int
    trained_tensors: int
    updated: int
    updated_tensors: int
    buffers: int
    kept: int = 0

    def resident_bytes(self, *, state_bytes_per_byte: float) -> int:
        """Parameters, gradients, optimizer state, buffers and what compression keeps, together [bytes].

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
    """What each rank of a program holds.

    Args:
        program: says which segments a rank computes
        graph: the network
        strategy: where it is cut
    """
    parts = segment_ops(graph, strategy)
    states: dict[frozenset[int], RankState] = {}
    found = []
    for rank, instructions in enumerate(program.ranks):
        segments = frozenset(item.segment for item in instructions if item.segment is not None)
        ops = [op for segment in sorted(segments) for op in parts[segment]]
        if segments not in states:
            states[segments] = held_state(graph, ops, strategy)
        reduces = [item for item in instructions if item.kind == Kind.REDUCE]
        found.append(_at_home(states[segments], rank, reduces, graph, ops, strategy) if reduces else states[segments])
    return tuple(found)


def _at_home(
    state: RankState, rank: int, reduces: Sequence[Instruction], graph: Graph, ops: Sequence[Op], strategy: Strategy
) -> RankState:
    """The state of a rank that updates only what it is home to."""
    labels = {item.label for item in reduces if item.home == rank}
    own = [bucket for bucket in gradient_buckets(graph, ops, strategy.bucket_bytes) if bucket.label in labels]
    return replace(
        state,
        updated=sum(bucket.nbytes for bucket in own),
        updated_tensors=sum(len(bucket.parameters) for bucket in own),
    )


def held_state(graph: Graph, ops: Sequence[Op], strategy: Strategy) -> RankState:
    """What a rank holds of some operations, and updates where nobody else does.

    Args:
        graph: the network
        ops: of the segments of the rank
        strategy: what is sharded
    """
    whole = strategy.segments == 1
    used = {name for op in ops for name in op.parameters}
    shards = sharded_bytes(graph, strategy)
    parameters = [
        replace(parameter, nbytes=shards.get(parameter.name, parameter.nbytes))
        for parameter in graph.parameters
        if whole or parameter.name in used
    ]
    trained = [parameter for parameter in parameters if parameter.trainable]
    buffers = set(graph.buffers) if whole else {name for op in ops for name in op.buffers}
    if strategy.zero:
        held = zero_bytes(graph, ops, strategy)
        return RankState(
            parameters=held.parameters,
            trained=held.gradients,
            trained_tensors=len(trained),
            updated=held.updated,
            updated_tensors=held.updated_tensors,
            buffers=sum(graph.buffers.get(name, 0) for name in buffers),
        )
    return RankState(
        parameters=sum(parameter.nbytes for parameter in parameters),
        trained=sum(parameter.nbytes for parameter in trained),
        trained_tensors=len(trained),
        updated=sum(parameter.nbytes for parameter in trained),
        updated_tensors=len(trained),
        buffers=sum(graph.buffers.get(name, 0) for name in buffers),
        kept=kept_bytes(strategy.compression, trained),
    )
