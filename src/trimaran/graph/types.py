"""The job as one dataflow graph: pure data, with no torch object in it.

An `Op` is a call of a leaf module of the user's model, or of one tensor operation between such calls, or the loss. It
has a forward, a backward and, where it owns parameters, an update. Sizes grow with the batch: they are `Affine` in it.

Ids are stable across runs and machines: the path of the leaf module (`features.0`; its second call `features.0@1`), or
the name of the traced operation (`add_3`). Op order is a legal order of execution, and the order in which the model ran
them.

Parts of a network whose work can be shared out over ranks: pure data, found by `graph.sharding`.

    whole ─▶ column ─▶ operations on a share ─▶ row ─▶ sum over the ranks ─▶ whole

A region starts at linear operations whose weights are split by output features, and ends at some that are split by
input features; in between every rank has its share of the features or heads. So there is one sum in the forward for
each end, and one in the backward for each tensor that comes in from outside. An embedding that is split by the entries
of its vocabulary is a region, which ends in a sum; so is a classifier, which ends in a gather. Where a
network has no such pair, each linear layer and each convolution is a region that ends in a gather:

    whole ─▶ column ─▶ gather over the ranks ─▶ whole

Which trained parameters get a gradient: all, always the same ones, or others from batch to batch.

A parameter that no sample of a global batch used has no gradient in a plain loop (`grad` is None), and an optimizer
leaves it alone: no weight decay, no momentum. Replicas see shares of a batch, so that a parameter may have a gradient
on one and none on another; then they must ask each other. Where every parameter always has one, nobody asks.
"""

import functools
import hashlib
import json
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Literal, TypeVar

from trimaran.graph.behaviour import Behaviour

RegionKind = Literal["pair", "attention", "embedding", "head", "layer"]
"""What a region is. "pair": columns, then rows; "attention": both inside one module of torch's; "embedding" and "head":
by the entries of a vocabulary; "layer": a linear layer or a convolution by its outputs, which are gathered."""

GATHERED: frozenset[RegionKind] = frozenset({"head", "layer"})
"""Kinds of regions that end in a gather of what their columns make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSplit:
    """How a parameter lies on the ranks that share a region.

    Attributes:
        parameter: its name (`Parameter.name`)
        dim: the dimension that is split
        sections: sizes of the parts of that dimension that are split each by itself, such as queries, keys and values
            in one matrix
    """

    parameter: str
    dim: int
    sections: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEntry:
    """A tensor that every rank has whole, and of whose gradient each rank makes a part.

    Attributes:
        tensor: its name (`TensorSpec.name`), or that of a parameter
        op: the first operation of the region, in the order of the graph, that reads it
    """

    tensor: str
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Operations that can be shared out together, or not at all.

    Attributes:
        kind: what it is
        columns: operations split by output features
        rows: operations split by input features, or by entries of an embedding: their outputs are summed
        inside: operations in between, which work on a share of their tensors
        entries: what comes in whole and wants a gradient
        splits: of the parameters
        units: the number of ranks must divide it; 0: any number, with uneven shares
        samples: all of its tensors are [samples, features] and each sample is by itself, so that replicas may share it
            too: they gather each other's samples in front of it
        draws: operations inside that draw random numbers in training, other ones for each share
        partial: parameters inside that every rank has whole, of whose gradient it makes a part
    """

    kind: RegionKind
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    entries: tuple[RegionEntry, ...] = ()
    splits: tuple[ParameterSplit, ...] = ()
    units: int = 0
    samples: bool = False
    draws: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its first operation."""
        return (*self.columns, *self.rows)[0]

    def fits(self, ranks: int) -> bool:
        """Whether that many ranks can share it.

        Example:
            >>> Region(kind="pair", columns=("a",), rows=("b",), units=12).fits(8)
            False
        """
        if self.units:
            return self.units % ranks == 0
        if self.kind == "layer":
            # The last share is the smallest, and a convolution without channels is none.
            last = [share_bounds(sum(split.sections), ranks, ranks - 1) for split in self.splits]
            return all(low < high for low, high in last)
        return all(sum(split.sections) >= ranks for split in self.splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualStream:
    """What lies between regions, where each rank can have its own part of every sequence: norms, dropouts, sums.

    Results of regions come in scattered along the sequence in place of summed, and regions gather what they read.

    Attributes:
        ops: operations that work on parts of sequences
        sources: rows and embeddings whose results come in scattered
        partial: parameters of its operations and biases behind rows, of whose gradients each rank makes a part
        entries: whole tensors of which it takes a part, and that want a gradient
        exits: tensors that others read whole, each gathered behind the operation that makes it
        length: of the sequences; the number of ranks must divide it; 0: there is no stream
    """

    ops: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    entries: tuple[RegionEntry, ...] = ()
    exits: tuple[RegionEntry, ...] = ()
    length: int = 0


def share_bounds(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """First and last (exclusive) of the share of a rank; shares differ where the size does not divide, as DTensor's.

    Args:
        size: of the whole
        ranks: that share it
        rank: one of them

    Example:
        >>> [share_bounds(10, 4, rank) for rank in range(4)]
        [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    most = -(-size // ranks)
    return min(rank * most, size), min((rank + 1) * most, size)


class Phase(StrEnum):
    """Part of a training step."""

    FORWARD = "FP"
    BACKWARD = "BP"
    UPDATE = "WU"


@dataclass(frozen=True, slots=True)
class Affine:
    """A quantity `fixed + per_sample * batch`.

    Example:
        >>> Affine(10.0, 2.0).at(8)
        26.0
    """

    fixed: float = 0.0
    per_sample: float = 0.0

    def at(self, batch: float) -> float:
        """Value for a batch of that many samples."""
        return self.fixed + self.per_sample * batch

    def __add__(self, other: "Affine") -> "Affine":
        return Affine(self.fixed + other.fixed, self.per_sample + other.per_sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor that flows between operations.

    Attributes:
        name: unique in the graph
        shape: sizes; an int, or an expression in the batch size `B`, such as "B" or "2*B"
        dtype: torch's name of it, without "torch."
        nbytes: size of its elements [bytes]
        requires_grad: a gradient flows back along it
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    nbytes: Affine
    requires_grad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A trained tensor.

    Attributes:
        name: in the model's `state_dict`; of several tied names, the first
        shape: sizes
        dtype: torch's name of it, without "torch."
        nbytes: size [bytes]
        trainable: has a gradient
        aliases: the other names of the same tensor (tied weights)
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    trainable: bool = True
    aliases: tuple[str, ...] = ()


Line = tuple[int, int]
"""Bytes at a moment: fixed, and for each sample [bytes]."""

ROOT = "(model)"
"""Origin of what the model calls outside of its modules."""

OUTSIDE = "(outside)"
"""Origin of what runs outside of the model: the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation, with its forward, its backward and the parameters that it uses.

    Attributes:
        id: stable name
        target: what is called: "Conv2d", "aten.add.Tensor", "loss"
        module: path of the innermost module of the user's model that it belongs to
        inputs: names of the tensors that it reads (`TensorSpec.name`), those of the graph's inputs included
        outputs: the tensors that it makes
        parameters: names of the parameters that it uses (`Parameter.name`)
        buffers: names of the buffers that it uses, such as the running statistics of batch norm
        flops: of the forward [FLOP]
        backward_flops: of the backward [FLOP]
        bytes_moved: read and written by the forward, parameters included [bytes]
        backward_bytes_moved: likewise by the backward [bytes]
        saved: names of the storages that autograd keeps from its forward to its backward (`Graph.storages`)
        content: digest of what it computes (target, shapes without the batch, dtypes, attributes): operations with the
            same content and batch cost the same
        origins: what a trace says of the kernels that it launches (`TraceOp.origin`): a torch function, or the calls of
            a module and of those inside
    """

    id: str
    target: str
    module: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    flops: Affine = Affine()
    backward_flops: Affine = Affine()
    bytes_moved: Affine = Affine()
    backward_bytes_moved: Affine = Affine()
    saved: tuple[str, ...] = ()
    content: str = ""
    origins: tuple[str, ...] = ()


Known = TypeVar("Known")


def of_graph(function: "Callable[[Graph], Known]") -> "Callable[[Graph], Known]":
    """Let a function of a graph be computed once for each graph that is alive: a search asks for it hundreds of times.

    Args:
        function: of a graph alone; what it returns is not changed by anybody

    Example:
        >>> seen = []
        >>> count = of_graph(lambda graph: seen.append(graph.name) or len(graph.ops))
        >>> empty = Graph(name="empty", inputs=(), buffers={}, storages={})
        >>> count(empty), count(empty), seen
        (0, 0, ['empty'])
    """
    known: dict[int, tuple[weakref.ref[Graph], Known]] = {}

    @functools.wraps(function)
    def once(graph: "Graph") -> Known:
        number = id(graph)
        found = known.get(number)
        if found is None or found[0]() is not graph:
            found = weakref.ref(graph, lambda _: known.pop(number, None)), function(graph)
            known[number] = found
        return found[1]

    return once


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Graph:
    """The whole step of a job.

    Attributes:
        name: of the job
        inputs: tensors of a batch that the model and the loss read; the names of those that only the loss reads are in
            `targets`
        targets: names of the inputs that only the loss reads
        ops: in order of execution; the last one is the loss
        parameters: every parameter of the model, each tied group once
        buffers: name and size [bytes] of every buffer of the model
        storages: size of each storage that autograd keeps [bytes]; shared ones are there once
        split_points: ids of the operations after which the model may be split into segments, in order
        precision: of the job
        notes: what could not be captured, and what that costs the user
        regions: what tensor-parallel ranks can share, in order; each parameter is in the regions of all its readers, or
            in none
        stream: what lies between regions and can be split along sequences
        whole: for operations with large weights that are in no pair of layers, the reason
        behaviour: what the job was seen to do, besides what it computes; None: nobody has looked
        kept: sizes of the storages where another device and precision than the captured one keep others [bytes]; empty:
            those of `storages`
        passing: there, by operation, lines of which the largest at a batch is what activations take that autograd does
            not keep, while the forward runs and while the backward does; empty: not known
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    targets: tuple[str, ...] = ()
    ops: tuple[Op, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    buffers: Mapping[str, int]
    storages: Mapping[str, Affine]
    split_points: tuple[str, ...] = ()
    precision: str = "fp32"
    notes: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    stream: ResidualStream = field(default_factory=ResidualStream)
    whole: Mapping[str, str] = field(default_factory=dict)
    behaviour: Behaviour | None = None
    kept: Mapping[str, Affine] = field(default_factory=dict)
    passing: Mapping[str, tuple[tuple[Line, ...], tuple[Line, ...]]] = field(default_factory=dict)

    @property
    def kept_storages(self) -> Mapping[str, Affine]:
        """Size of each storage that autograd keeps, where the step runs [bytes]."""
        return self.kept or self.storages

    @property
    def digest(self) -> str:
        """Digest of everything that decides what a plan means: structure, shapes, dtypes, parameters."""
        return _digest(self)

    def parts(self, boundaries: Iterable[str]) -> tuple[tuple[Op, ...], ...]:
        """The operations of each segment of a chain.

        Args:
            boundaries: the last operation of every segment but the last, in order

        Returns:
            One tuple of operations a segment.

        Raises:
            KeyError: a boundary that is no operation
        """
        position = {op.id: index for index, op in enumerate(self.ops)}
        ends = [position[boundary] + 1 for boundary in boundaries]
        starts = [0, *ends]
        return tuple(self.ops[a:b] for a, b in zip(starts, [*ends, len(self.ops)], strict=True))

    def crossing(self, boundaries: Iterable[str]) -> dict[tuple[int, int], tuple[TensorSpec, ...]]:
        """The tensors that each pair of segments of a chain exchanges in the forward; see `exchanged`.

        Args:
            boundaries: as for `parts`
        """
        return self.exchanged(self.parts(boundaries))

    def exchanged(self, parts: Sequence[Sequence[Op]]) -> dict[tuple[int, int], tuple[TensorSpec, ...]]:
        """The tensors that each pair of segments exchanges in the forward.

        A tensor goes straight from the segment that makes it to each segment that reads it; a long skip is not handed
        on from segment to segment.

        Args:
            parts: the operations of each segment, in an order in which the segments can run

        Returns:
            For each `(producer, consumer)` pair of segment numbers, the tensors in order of production.
        """
        made = {spec.name: (number, spec) for number, ops in enumerate(parts) for op in ops for spec in op.outputs}
        order = {name: index for index, name in enumerate(made)}
        pairs: dict[tuple[int, int], set[str]] = {}
        for number, ops in enumerate(parts):
            for op in ops:
                for name in op.inputs:
                    if name in made and made[name][0] != number:
                        pairs.setdefault((made[name][0], number), set()).add(name)
        return {
            pair: tuple(made[name][1] for name in sorted(names, key=order.__getitem__))
            for pair, names in sorted(pairs.items())
        }


@of_graph
def _digest(graph: Graph) -> str:
    plain = asdict(graph) | {"notes": (), "name": ""}
    # These follow from the rest.
    del plain["regions"], plain["stream"], plain["whole"], plain["behaviour"]
    # Where it runs changes nothing of what it computes.
    del plain["kept"], plain["passing"]
    for op in plain["ops"]:
        del op["origins"]
    plain["cuts"] = plain.pop("split_points")  # as it was called when digests began, which files hold
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


ParameterUse = Literal["always", "fixed", "varies"]
"""Every trained parameter has a gradient in every step; the same ones never have any; or it depends on the data."""


def parameter_use(graph: Graph | None) -> ParameterUse:
    """Which trained parameters get a gradient, as far as a graph tells.

    The forward of a captured model is the same for all data. The loss may read some of several outputs, so a parameter
    is known to have a gradient where all outputs depend on it, or where every one was seen to have one. Which outputs
    it reads may depend on the data, too.

    Args:
        graph: of the job; None: nothing is known

    Returns:
        "always" is certain; the others are where it is not.

    Example:
        >>> parameter_use(None)
        'varies'
    """
    if graph is None or is_whole(graph):
        return "varies"
    seen = graph.behaviour
    if seen is not None and seen.varying:
        return "varies"
    if seen is not None and seen.carried:
        # By what changes from step to step a forward may leave out a layer, or run it without gradients.
        return "fixed"
    if seen is not None and not (seen.not_looked or seen.host_draws or seen.unused):
        return "always"
    number = {parameter.name: at for at, parameter in enumerate(graph.parameters) if parameter.trainable}
    reached: dict[str, int] = {}
    for op in graph.ops[:-1]:
        inner = 0
        for name in op.inputs:
            inner |= reached.get(name, 0)
        for name in op.parameters:
            if name in number:
                inner |= 1 << number[name]
        reached.update((spec.name, inner) for spec in op.outputs if spec.requires_grad)
    every = sum(1 << at for at in number.values())
    read = [reached[name] for name in graph.ops[-1].inputs if name in reached]
    return "always" if read and all(found == every for found in read) else "fixed"


def is_whole(graph: Graph) -> bool:
    """Whether the model could not be captured, and is one operation of which nobody knows what is inside.

    Args:
        graph: of the job
    """
    return len(graph.ops) == 2 and graph.ops[0].target == "model" == graph.ops[0].id
