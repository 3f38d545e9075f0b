"""Gradient buckets: which parameters are reduced together, and at which point of the backward they are ready.

The rule is that of `torch.nn.parallel.DistributedDataParallel` after it has rebuilt its buckets in order of arrival:
fill a bucket until it has reached its size limit, one dtype a bucket, with a smaller limit for the first. Our executor
uses the same buckets, so that data-parallel and hybrid plans differ only where they must.

Compression makes gradients smaller before they are sent. Every method here loses something. "bf16" and "fp16" round
each number to 16 bits. "powersgd" sends two thin matrices whose product is close to the gradient's matrix. The loss is
added to the gradient of the next step (error feedback).

Source:
    T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019.

Each tensor has an owner, which sums and updates it, where replicas exchange by copies to one place and back. The
largest tensors are assigned first, each to the owner with the fewest bytes so far. Left out: that some owners are
nearer than others, and that each small tensor costs a call.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast, get_args

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph, Op, Parameter, of_graph

Method = Literal["bf16", "fp16", "powersgd"]

SMALLEST_BYTES = 4
"""Size of the smallest numbers that a method makes smaller [bytes]."""

_TEXT = re.compile(r"(bf16|fp16)|powersgd(?:-r|:)?([1-9][0-9]{0,3})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """A lossy form in which gradients are sent.

    Attributes:
        method: which
        rank: of the matrices of "powersgd"; 0 with the others

    Raises:
        InputError: an unknown method, or a rank that it does not have
    """

    method: Method
    rank: int = 0

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise InputError(f"Compression.method must be one of {', '.join(get_args(Method))}, got {self.method!r}")
        low, high = (1, 9999) if self.method == "powersgd" else (0, 0)
        if not isinstance(self.rank, int) or not low <= self.rank <= high:
            raise InputError(
                f"{self.method} takes a rank of {low} to {high}, got {self.rank!r}", method=self.method, rank=self.rank
            )

    @property
    def name(self) -> str:
        """Short form for names of strategies.

        Example:
            >>> Compression(method="bf16").name, Compression(method="powersgd", rank=2).name
            ('bf16', 'powersgd-r2')
        """
        return f"{self.method}-r{self.rank}" if self.rank else self.method

    @property
    def option(self) -> str:
        """As it is written on the command line.

        Example:
            >>> Compression(method="bf16").option, Compression(method="powersgd", rank=2).option
            ('bf16', 'powersgd:2')
        """
        return f"{self.method}:{self.rank}" if self.rank else self.method

    def wire_numbers(self, shape: Sequence[int]) -> int:
        """Numbers that are sent for one parameter's gradient.

        PowerSGD takes a gradient as a matrix of its first dimension by all others, and sends r numbers a row and r a
        column; a vector, and a matrix that this would not make smaller, go as they are.

        Args:
            shape: of the parameter

        Example:
            >>> Compression(method="powersgd", rank=2).wire_numbers((64, 32, 3, 3))  # 2 (64 + 288)
            704
            >>> Compression(method="powersgd", rank=2).wire_numbers((64,))
            64
        """
        return sum(self._thin(shape)) or math.prod(shape)

    def second_numbers(self, shape: Sequence[int]) -> int:
        """Those of `wire_numbers` that go in a second sum: r a column.

        Args:
            shape: of the parameter

        Example:
            >>> Compression(method="powersgd", rank=2).second_numbers((64, 32, 3, 3))  # 2 · 288
            576
        """
        return self._thin(shape)[1]

    def factors(self, shape: Sequence[int]) -> bool:
        """Whether the gradient of a parameter goes as two thin matrices.

        Args:
            shape: of the parameter
        """
        return any(self._thin(shape))

    def _thin(self, shape: Sequence[int]) -> tuple[int, int]:
        """Numbers of the two thin matrices of a gradient; zeros: it goes as it is."""
        numbers = math.prod(shape)
        if self.method != "powersgd" or len(shape) < 2 or not numbers:
            return 0, 0
        rows, columns = shape[0], numbers // shape[0]
        rank = min(self.rank, rows, columns)
        return (rank * rows, rank * columns) if rank * (rows + columns) < numbers else (0, 0)

    def wire_bytes(self, shapes: Sequence[Sequence[int]], *, itemsize: int = 4) -> int:
        """Size of a bucket as it is sent [bytes]; gradients of 16 bits go as they are, by any method.

        Args:
            shapes: of its parameters
            itemsize: of a number of the gradients [bytes]

        Example:
            >>> Compression(method="bf16").wire_bytes([(64, 32), (64,)])
            4224
            >>> Compression(method="powersgd", rank=2).wire_bytes([(64, 32), (64,)], itemsize=2)
            4224
        """
        if itemsize < SMALLEST_BYTES:
            return itemsize * sum(math.prod(shape) for shape in shapes)
        size = itemsize if self.method == "powersgd" else 2
        return size * sum(self.wire_numbers(shape) for shape in shapes)


def parse_compression(text: str) -> Compression | None:
    """A compression as it is written on the command line.

    Args:
        text: "none", "bf16", "fp16", or "powersgd" with a rank, as in "powersgd:2" (4 where none is given)

    Raises:
        InputError: a text that means nothing

    Example:
        >>> parse_compression("powersgd:2"), parse_compression("none")
        (Compression(method='powersgd', rank=2), None)
    """
    lowered = text.strip().lower()
    if lowered in ("none", ""):
        return None
    found = _TEXT.fullmatch(lowered)
    if found is None:
        raise InputError(
            f'compression must be none, bf16, fp16 or powersgd:RANK, got "{text}"',
            code="compression.unknown",
            value=text,
        )
    if found[1]:
        return Compression(method=cast("Method", found[1]))
    return Compression(method="powersgd", rank=int(found[2] or 4))


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
        wire_bytes: size as they are sent [bytes]
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
        compression: of gradients that are sent; it decides on `wire_bytes` alone: a bucket is filled by what it holds

    Returns:
        The buckets; none where nothing is trained.

    Source:
        torch 2.13: `_compute_bucket_assignment_by_size` closes a bucket when its size reaches `bucket_cap_mb`;
        `_BucketCapacityConfig` limits the first one to 1 MiB where the user gave no `bucket_cap_mb`.
    """
    wanted = trained_parameters(graph)
    if sizes:
        used = {name for op in ops for name in op.parameters}
        wanted = {
            name: one if sizes.get(name, one.nbytes) == one.nbytes else replace(one, nbytes=sizes[name])
            for name, one in wanted.items()
            if name in used
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


@of_graph
def trained_parameters(graph: Graph) -> Mapping[str, Parameter]:
    """The parameters that have a gradient, by name."""
    return {parameter.name: parameter for parameter in graph.parameters if parameter.trainable}


def _wire_bytes(parameters: Sequence[Parameter], compression: Compression | None) -> int:
    """Size of a bucket as it is sent [bytes]; no method makes it larger."""
    whole = sum(parameter.nbytes for parameter in parameters)
    if compression is None:
        return whole
    numbers = sum(math.prod(parameter.shape) for parameter in parameters)
    itemsize = whole // numbers if numbers else 0
    return min(whole, compression.wire_bytes([parameter.shape for parameter in parameters], itemsize=itemsize))


def first_bucket_bytes(bucket_bytes: int) -> int:
    """Limit of the first bucket [bytes].

    DDP makes the first bucket small only where the user left `bucket_cap_mb` at its default.

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


Owner = TypeVar("Owner")


def owners_by_size(nbytes: Sequence[float], owners: Sequence[Owner]) -> tuple[Owner, ...]:
    """An owner for each tensor: by size, each goes to the owner with the least so far, the first of those that tie.

    Args:
        nbytes: of each tensor [bytes]
        owners: to choose from, different ones

    Source:
        apache/mxnet src/kvstore/comm.h, CommDevice::InitMergeBuffer.

    Example:
        >>> owners_by_size([1, 8, 4, 3], ["gpu0", "gpu1"])
        ('gpu1', 'gpu0', 'gpu1', 'gpu1')
    """
    loads = [0.0] * len(owners)
    chosen = [0] * len(nbytes)
    for place in sorted(range(len(nbytes)), key=lambda place: -nbytes[place]):
        owner = loads.index(min(loads))
        chosen[place] = owner
        loads[owner] += nbytes[place]
    return tuple(owners[owner] for owner in chosen)


def bucket_owners(buckets: Sequence[Bucket], ranks: Sequence[int]) -> Mapping[str, int]:
    """The owner of each bucket of gradients, by its label.

    Args:
        buckets: of one segment
        ranks: the replicas of the segment

    Returns:
        A rank for each label.
    """
    owners = owners_by_size([bucket.nbytes for bucket in buckets], ranks)
    return {bucket.label: owner for bucket, owner in zip(buckets, owners, strict=True)}
