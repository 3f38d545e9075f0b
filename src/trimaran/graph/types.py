"""The job as one dataflow graph: pure data, with no torch object in it.

An `Op` is a call of a leaf module of the user's model, or of one tensor operation between such calls, or the loss. It
has a forward, a backward and, where it owns parameters, an update. Sizes grow with the batch: they are `Affine` in it.

Ids are stable across runs and machines: the path of the leaf module (`features.0`; its second call `features.0@1`), or
the name of the traced operation (`add_3`). Op order is a legal order of execution, and the order in which the model ran
them.
"""

import hashlib
import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from trimaran.graph.behaviour import Behaviour
from trimaran.graph.regions import Region, Stream


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
        cuts: ids of the operations after which the model may be cut into segments, in order
        precision: of the job
        notes: what could not be captured, and what that costs the user
        regions: what tensor-parallel ranks can share, in order; each parameter is in the regions of all its readers, or
            in none
        stream: what lies between regions and can be split along sequences
        whole: for operations with large weights that are in no pair of layers, the reason
        behaviour: what the job was seen to do, beside what it computes; None: nobody has looked
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    targets: tuple[str, ...] = ()
    ops: tuple[Op, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    buffers: Mapping[str, int]
    storages: Mapping[str, Affine]
    cuts: tuple[str, ...] = ()
    precision: str = "fp32"
    notes: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    stream: Stream = field(default_factory=Stream)
    whole: Mapping[str, str] = field(default_factory=dict)
    behaviour: Behaviour | None = None

    @property
    def digest(self) -> str:
        """Digest of everything that decides what a plan means: structure, shapes, dtypes, parameters."""
        known = _DIGESTS.get(id(self))
        if known is None or known[0]() is not self:
            number = id(self)
            known = weakref.ref(self, lambda _: _DIGESTS.pop(number, None)), _digest(self)
            _DIGESTS[number] = known
        return known[1]

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


_DIGESTS: "dict[int, tuple[weakref.ref[Graph], str]]" = {}
"""Digests of the graphs that are alive, by identity: a search asks for one hundreds of times."""


def _digest(graph: Graph) -> str:
    plain = asdict(graph) | {"notes": (), "name": ""}
    # These follow from the rest.
    del plain["regions"], plain["stream"], plain["whole"], plain["behaviour"]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
