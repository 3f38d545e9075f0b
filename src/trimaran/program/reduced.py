"""The buckets of gradients of one rank, by segment."""

from collections.abc import Collection, Mapping, Sequence

from trimaran.graph.types import Graph, Op
from trimaran.program.buckets import Bucket, gradient_buckets
from trimaran.program.cut import tied_segments
from trimaran.program.segments import segment_ops
from trimaran.program.sharded import own_parameters
from trimaran.program.types import Instruction, Kind, Strategy
from trimaran.program.zero import bucket_reduction

COMPLETING = frozenset({Kind.BACKWARD, Kind.BACKWARD_WEIGHT})
"""Steps that add to gradients; the last one of a segment completes them."""


def rank_buckets(
    graph: Graph,
    strategy: Strategy,
    parts: Sequence[Sequence[Op]],
    completing: Sequence[int],
    *,
    tied: Mapping[str, Collection[int]],
    sizes: Mapping[str, int] | None = None,
) -> dict[int, tuple[Bucket, ...]]:
    """Buckets of the segments of a rank; a weight that two of them share is complete with the later one.

    Args:
        graph: the job
        strategy: how replicas stay alike, and how large a bucket is
        parts: the operations of each segment
        completing: the segments that are trained here, in the order in which their gradients are complete
        tied: for each parameter that several segments use, those segments
        sizes: bytes that a rank holds of parameters of which it may hold a share; None: all are whole
    """
    if bucket_reduction(strategy) is None:
        return dict.fromkeys(completing, ())
    taken = set(own_parameters(graph, strategy))
    buckets = {}
    for segment in reversed(completing):
        buckets[segment] = gradient_buckets(
            graph,
            parts[segment],
            strategy.bucket_bytes,
            without=taken,
            sizes=sizes,
            compression=strategy.compression,
        )
        taken.update(name for name, users in tied.items() if segment in users)
    return buckets


def buckets_by_token(graph: Graph, strategy: Strategy, instructions: Sequence[Instruction]) -> dict[str, Bucket]:
    """The bucket of each all-reduce of gradients of a rank, by the token of the all-reduce.

    Args:
        graph: the job
        strategy: that the program was lowered from; whole tensors on each rank
        instructions: of the rank
    """
    parts = segment_ops(graph, strategy)
    last = {
        item.segment: position
        for position, item in enumerate(instructions)
        if item.kind in COMPLETING and item.segment is not None
    }
    found = rank_buckets(
        graph,
        strategy,
        parts,
        sorted(last, key=last.__getitem__),
        tied=tied_segments(graph, parts),
    )
    return {f"{segment}{Kind.ALL_REDUCE}#{bucket.label}": bucket for segment, some in found.items() for bucket in some}
