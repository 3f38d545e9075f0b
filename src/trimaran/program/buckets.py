"""Gradient buckets: which parameters are reduced together, and at which point of the backward they are ready.

The rule is that of `torch.nn.parallel.DistributedDataParallel` after it has rebuilt its buckets in order of arrival:
fill a bucket until it has reached its limit, one dtype a bucket, with a smaller limit for the first. Our own executor
uses the same buckets, so that data-parallel and hybrid plans are told apart by what differs in them.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.graph.types import Graph, Op, Parameter
from trimaran.program.compression import Compression

DEFAULT_BUCKET_BYTES = 25 * 2**20
"""Limit of DDP's buckets where the user gave none [bytes]; `bucket_cap_mb` in torch's documentation."""

FIRST_BUCKET_BYTES = 2**20
"""Limit of the first bucket in that case [bytes]; `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are reduced together.

    Attributes:
        label: "b0", "b1", ... in order of readiness
        parameters: names of its parameters, in order of readiness
        nbytes: size of their gradients [bytes]
        op: id of the operation whose backward completes it
        dtype: torch's name of the dtype of all of them, without "torch."
        wire_bytes: size of what stands for them on the wire [bytes]
    """

    label: str
    parameters: tuple[str, ...]
    nbytes: int
    op: str
    dtype: str
    wire_bytes: int


def gradient_buckets(
    graph: Graph,
    ops: Sequence[Op],
    bucket_bytes: int,
    *,
    without: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    compression: Compression | None = None,
) -> tuple[Bucket, ...]:
    """Buckets of the gradients of some operations, in order of readiness in their backward.

    The backward runs the operations in reverse. A parameter that several of them use is ready after the earliest in
    forward order, because its gradient is a sum over all of them. Frozen parameters have no gradient.

    Args:
        graph: the graph
        ops: operations of a segment, in forward order
        bucket_bytes: a bucket is closed when it has reached this size [bytes]
        without: names of parameters to leave out, because another segment of the same rank completes them
        sizes: bytes that a rank holds of parameters of which it may hold a share; None: all are whole
        compression: of gradients on the wire; it decides on `wire_bytes` alone: a bucket is filled by what it holds

    Returns:
        The buckets; none where nothing is trained.

    Source:
        torch 2.13: `_compute_bucket_assignment_by_size` closes a bucket when its size reaches the limit;
        `_BucketCapacityConfig` limits the first one to 1 MiB where the user gave no `bucket_cap_mb`.
    """
    wanted = {
        parameter.name: replace(parameter, nbytes=(sizes or {}).get(parameter.name, parameter.nbytes))
        for parameter in graph.parameters
        if parameter.trainable
    }
    ready = [(wanted[name], op) for name, op in _arrivals(ops) if name in wanted and name not in without]
    filled: list[list[int]] = []
    opened: dict[str, list[int]] = {}
    held: dict[str, int] = {}
    limits: dict[str, int] = {}
    for position, (parameter, _) in enumerate(ready):
        dtype = parameter.dtype
        opened.setdefault(dtype, []).append(position)
        held[dtype] = held.get(dtype, 0) + parameter.nbytes
        if held[dtype] >= limits.get(dtype, first_bucket_bytes(bucket_bytes)):
            filled.append(opened.pop(dtype))
            held[dtype], limits[dtype] = 0, bucket_bytes
    # A bucket is complete with its last member, whenever another dtype's was closed.
    members = sorted([*filled, *opened.values()], key=lambda positions: positions[-1])
    found = []
    for number, positions in enumerate(members):
        held_here = [ready[position][0] for position in positions]
        found.append(
            Bucket(
                label=f"b{number}",
                parameters=tuple(parameter.name for parameter in held_here),
                nbytes=sum(parameter.nbytes for parameter in held_here),
                op=ready[positions[-1]][1],
                dtype=held_here[0].dtype,
                wire_bytes=_wire_bytes(held_here, compression),
            )
        )
    return tuple(found)


def _wire_bytes(parameters: Sequence[Parameter], compression: Compression | None) -> int:
    """What a bucket is on the wire [bytes]; no method makes it larger."""
    whole = sum(parameter.nbytes for parameter in parameters)
    if compression is None:
        return whole
    numbers = sum(math.prod(parameter.shape) for parameter in parameters)
    itemsize = whole // numbers if numbers else 0
    return min(whole, compression.wire_bytes([parameter.shape for parameter in parameters], itemsize=itemsize))


def first_bucket_bytes(bucket_bytes: int) -> int:
    """Limit of the first bucket [bytes].

    DDP makes the first bucket small only where the user left the limit at its default.

    Example:
        >>> first_bucket_bytes(25 * 2**20), first_bucket_bytes(4096)
        (1048576, 4096)
    """
    return FIRST_BUCKET_BYTES if bucket_bytes == DEFAULT_BUCKET_BYTES else bucket_bytes


def _arrivals(ops: Sequence[Op]) -> Iterable[tuple[str, str]]:
    """Each parameter that the operations use, with the operation that completes its gradient, in that order."""
    earliest: dict[str, int] = {}
    for position, op in enumerate(ops):
        for name in op.parameters:
            earliest.setdefault(name, position)
    for position in reversed(range(len(ops))):
        op = ops[position]
        for name in reversed(dict.fromkeys(op.parameters)):
            if earliest[name] == position:
                yield name, op.id
