"""The trace of one step, as plain data: what ran, what autograd packed and unpacked, how long each storage was there.

A trace is one sequence of **events**. An event is an operation or a **tick**: the n-th time that autograd packs a
tensor for the backward, or the n-th time that it unpacks one. A **moment** is the number of an event, and every life
is an interval of moments, so that memory at a moment is a sum that depends on no clock:

    moment      0       1        2        3       4         5          6
    event       conv    pack 0   relu_    pack 1  loss      unpack 0   relu_backward
    storage 7   [birth 0 ......................................... end 7)

A storage is there in the moments `birth <= m < end`: during the operation that makes it, and no more when event `end`
begins. Views are no storages; a unit of a memory plan is always a whole storage.

Lives are recorded in a step in which autograd itself holds nothing: each packed tensor is dropped, and what an unpack
gives back is another storage, there for as long as the node uses it. What autograd holds in an ordinary step
follows from the packs, and what it would hold under any other plan as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal

from trimaran.graph.types import OUTSIDE, Phase

Value = tuple[int, int]
"""What a storage held at some time: (storage, version). An operation that changes a storage makes its next version."""

Shape = tuple[int, ...]
"""Of a tensor [elements]."""

Operand = tuple[int, Shape]
"""A tensor argument of an operation: number of its storage, and the tensor's shape."""


class Role(StrEnum):
    """What a storage is to the step."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer"
    INPUT = "input"
    ACTIVATION = "activation"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How a tensor looks at its storage.

    Attributes:
        shape: of the tensor
        stride: of the tensor [elements]
        offset: of its first element [elements]
        dtype: such as "float32"
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOp:
    """One operation below autograd, as the dispatcher saw it. Operations that only make views are left out.

    Attributes:
        moment: number of this event
        name: of the operator, such as "aten.convolution.default"
        phase: forward, backward or update
        module: path of the module that called it, such as "features.3"; "" where unknown
        origin: the call of that module, such as "features.3", or "features.3@1" for its second call; where it is known,
            with the torch function: "features.3@1/method_descriptor.add_2" is the second addition of the step. Of what
            adds up the gradient of a parameter, the name of the parameter
        reads: values that it reads
        writes: values that it makes: a new storage's version 0, or the next version of a storage that it changes
        flops: floating-point operations [FLOP]
        nbytes: bytes read and written [bytes]
        dtype: in which it computes, such as "float32"
        repeatable: whether running it again gives the same bits and changes nothing else: no random numbers, no
            communication. Running statistics of a batch norm are not "else": a repetition leaves them out
        duration_s: measured [s]; None where it was not (meta tensors)
        scratch_bytes: on the device only while it runs, such as the workspace of a library [bytes]; measured on a GPU
        operands: tensor arguments, in order
        results: shapes of the tensors that it gives, in order; None in the place of one that was not asked for
    """

    moment: int
    name: str
    phase: Phase
    module: str
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    flops: float
    nbytes: int
    dtype: str
    repeatable: bool
    duration_s: float | None = None
    scratch_bytes: int = 0
    origin: str = OUTSIDE
    operands: tuple[Operand, ...] = ()
    results: tuple[Shape | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Autograd packs a tensor, or unpacks one.

    Attributes:
        moment: number of this event
        kind: "pack" or "unpack"
        index: n-th pack or n-th unpack of the step, from 0
        pack: for an unpack, the index of the pack that it undoes; for a pack, its own index
        storage: of the tensor
        version: of the storage when it was packed
        view: of the tensor
        node: name of the autograd node that made the tensor, such as "ReluBackward0"; "" for leaves
        end: for an unpack, the first moment at which the node has dropped the tensor; for a pack, the first moment at
            which autograd has dropped the handle
    """

    moment: int
    kind: Literal["pack", "unpack"]
    index: int
    pack: int
    storage: int
    version: int
    view: View
    node: str
    end: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStorage:
    """A storage and how long it is there.

    Attributes:
        number: its place in `StepTrace.storages`
        nbytes: whole size [bytes]; 0 where it is on another device than the step, as a batch still on the host
        role: what it is to the step
        birth: moment of the operation that made it; -1: it was there before the step
        outside_end: first moment at which it is no more there if autograd holds nothing; `StepTrace.length`: it stays
        keep_end: first moment at which it is no more there in an ordinary step, where autograd holds what it packed
        copy_bytes: extent that the packed views cover, so what a copy must move [bytes]; 0 where it was never packed
        packs: moments of the ticks that packed it, ascending
        unpacks: moments of the ticks that unpacked it, ascending
        version: when it was packed; None where it never was, or at several versions (then it must be kept)
        module: path of the module that made it
    """

    number: int
    nbytes: int
    role: Role
    birth: int
    outside_end: int
    keep_end: int
    copy_bytes: int
    packs: tuple[int, ...]
    unpacks: tuple[int, ...]
    version: int | None
    module: str

    @property
    def movable(self) -> bool:
        """Whether a memory plan may offload or recompute it: an activation or input, packed at one version, used."""
        return (
            self.role in (Role.ACTIVATION, Role.INPUT)
            and self.version is not None
            and bool(self.packs)
            and bool(self.unpacks)
            and self.nbytes > 0
        )


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """One step as it ran.

    Attributes:
        events: operations and ticks in order; `events[m].moment == m`
        storages: by number
        names: names of parameters and buffers by storage number
        device: of the tensors while tracing: "meta", "cpu" or "cuda"
        gradients: storage of the gradient that each parameter has at the end or in the update, by the parameter's
        optimizer: class name of the optimizer whose step is the update, such as "SGD"; "" without an update
        repeats: whether the backward runs parts of the forward again, as checkpoints do
    """

    events: tuple[TraceOp | Tick, ...]
    storages: tuple[TraceStorage, ...]
    names: Mapping[int, str]
    device: str
    gradients: Mapping[int, int] = field(default_factory=dict)
    optimizer: str = ""
    repeats: bool = False

    @property
    def length(self) -> int:
        """Number of moments."""
        return len(self.events)

    @cached_property
    def ops(self) -> tuple[TraceOp, ...]:
        """Operations in order."""
        return tuple(event for event in self.events if isinstance(event, TraceOp))

    @cached_property
    def packs(self) -> tuple[Tick, ...]:
        """Packs in order: `packs[n].index == n`."""
        return tuple(event for event in self.events if isinstance(event, Tick) and event.kind == "pack")

    @cached_property
    def unpacks(self) -> tuple[Tick, ...]:
        """Unpacks in order: `unpacks[n].index == n`."""
        return tuple(event for event in self.events if isinstance(event, Tick) and event.kind == "unpack")

    @cached_property
    def movable(self) -> tuple[TraceStorage, ...]:
        """Storages that a memory plan may offload or recompute."""
        return tuple(storage for storage in self.storages if storage.movable)


# ---------------------------------------------------------------------------------------------------------------------
# Names of the operations that stand for recurrent layers in a trace; see `recurrent`. Nothing here needs torch


NAMESPACE = "trimaran"

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Matrices of a cell that are stacked in one."""

FORWARD = "forward"
BACKWARD_INPUT = "backward_input"
BACKWARD_WEIGHT = "backward_weight"

PARTS = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)


def recurrent_name(cell: str, part: str) -> str:
    """Name of an operation, without its overload.

    Example:
        >>> recurrent_name("lstm", FORWARD)
        'trimaran.lstm_forward'
    """
    return f"{NAMESPACE}.{cell}_{part}"


RECURRENT = {recurrent_name(cell, part): (cell, part) for cell in GATES for part in PARTS}
"""Cell and part of each name."""
