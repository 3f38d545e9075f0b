"""Instruction and program: what each rank does in a step.

A program is plain data: it prints, parses, diffs. It describes one step; every step of a run executes it again. One
list a rank; instructions of a rank are issued in the order of its list. Those on one stream also run in that order,
except that what communicates only keeps the order of its channel or group.

Cross-rank dependencies are not written down, they follow from matching: the n-th send on a channel `(source rank,
destination rank)` meets the n-th receive on it, and the n-th collective of a group on one member meets the n-th on
the others.

A library may communicate inside a step of compute: a tensor-parallel sum in the middle of a forward, the gather of a
layer's weights before it, the scatter of its gradients after it. Each is an instruction, listed after its step and
started by a mark of it; where the step cannot go on without it, a mark of the step waits for it.

    0F0    ────────●──────────────●━━━━━━●─────▶     ● start of f0 and wait for it: the step blocks
    0AR0#f0        f0 ════════╗
                              ╚═ ends before the second ● goes on

Steps may overlap: in a pipeline that is never flushed a stage runs the backward of a global batch some steps after its
forward. `behind` says how many, and the same few instructions are still those of every step. All instructions that name
each other are of one global batch. `overlap.unroll` writes several such steps out as one plain program.

The collectives follow from what is sharded (`lowering/tensor_parallel.py`, `lowering/zero.py`); here they become marks
and instructions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from trimaran.base.timeline import COMMUNICATION, COMPUTE


class Kind(StrEnum):
    """Kind of an instruction. Values are the tokens of the text form."""

    LOAD = "IN"
    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_FORWARD = "SEND_F"
    RECEIVE_FORWARD = "RECV_F"
    SEND_BACKWARD = "SEND_B"
    RECEIVE_BACKWARD = "RECV_B"
    ALL_REDUCE = "AR"
    ALL_GATHER = "AG"
    REDUCE_SCATTER = "RS"
    BROADCAST = "BC"
    REDUCE = "RD"
    UPDATE = "U"
    CLIP = "CLIP"
    OFFLOAD = "OFF"
    PREFETCH = "PRE"
    RELEASE = "DEL"
    RECOMPUTE = "RE"
    EVALUATE = "EV"


SENDS = frozenset({Kind.SEND_FORWARD, Kind.SEND_BACKWARD})
RECEIVES = frozenset({Kind.RECEIVE_FORWARD, Kind.RECEIVE_BACKWARD})
COLLECTIVES = frozenset({Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.BROADCAST, Kind.REDUCE})
ROOTED = frozenset({Kind.BROADCAST, Kind.REDUCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point inside an instruction at which something happens.

    An instruction that names `token!mark` in its `after` starts there. With `waits_for` the instruction of the mark
    waits there until another one has ended: a tensor-parallel sum, the gather of a sharded layer's weights. A
    library does such communication inside the instruction; the program says when, between whom and how many bytes.

    Attributes:
        name: unique within the instruction, such as "b0": gradient bucket 0 is complete
        op: id of the graph operation after whose part of the instruction the point lies
        before: the point lies before that part instead
        waits_for: token of the instruction of the same rank that must have ended before this one goes on; it may be
            listed after this one, where this one's mark starts it
    """

    name: str
    op: str
    before: bool = False
    waits_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One thing that one rank does in a step.

    Attributes:
        kind: what it does
        rank: who does it
        segment: segment of the network, where it concerns one
        microbatch: number of the microbatch within the rank's share, where it concerns one
        stream: stream that it runs on
        peer: rank at the other end of a send or receive
        peer_segment: segment at the other end of a send or receive
        group: ranks of a collective, ascending
        root: rank that a broadcast starts from or a reduce ends at; None: the first of the group
        label: distinguishes instructions that are otherwise alike: "b0" (gradient bucket 0), "loss", "norm", "buffers"
        nbytes: bytes of the tensor on each rank, for a full batch [bytes]
        after: tokens of instructions of the same rank that must have ended, or `token!mark`: must have passed that mark
        marks: points inside it
        behind: it works on the global batch of this many steps before, where steps overlap; 0: on that of its step
        token: name within its rank: torch's pipelining token, with the other segment and the label added
        id: name within its program: `r<rank>/<token>`

    Example:
        >>> Instruction(kind=Kind.SEND_FORWARD, rank=0, segment=0, microbatch=3, peer=1, peer_segment=1).token
        '0SEND_F3>1'
    """

    kind: Kind
    rank: int
    segment: int | None = None
    microbatch: int | None = None
    stream: str = COMPUTE
    peer: int | None = None
    peer_segment: int | None = None
    group: tuple[int, ...] = ()
    root: int | None = None
    label: str = ""
    nbytes: int = 0
    after: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    behind: int = 0
    token: str = field(init=False, repr=False, compare=False)
    id: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        segment = "" if self.segment is None else str(self.segment)
        microbatch = "" if self.microbatch is None else str(self.microbatch)
        if self.peer_segment is None:
            end = ""
        else:
            end = f"{'>' if self.kind in SENDS else '<'}{self.peer_segment}"
        token = f"{segment}{self.kind}{microbatch}{end}{'#' if self.label else ''}{self.label}"
        object.__setattr__(self, "token", token)
        object.__setattr__(self, "id", f"r{self.rank}/{token}")

    @property
    def root_rank(self) -> int:
        """The rank that a broadcast starts from, or that a reduce ends at; no other kind has one.

        Example:
            >>> Instruction(kind=Kind.REDUCE, rank=0, group=(0, 1), root=1).root_rank
            1
        """
        return self.group[0] if self.root is None else self.root

    @property
    def communicates(self) -> bool:
        """Whether another rank takes part."""
        return self.kind in SENDS or self.kind in RECEIVES or self.kind in COLLECTIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Instructions of each rank in one step.

    Attributes:
        ranks: one list of instructions a rank
        segments: number of segments of the network
        microbatches: microbatches that each replica splits its share into
        tp: ranks that share the tensors of a row: rank = (replica * rows + row) * tp + shard
    """

    ranks: tuple[tuple[Instruction, ...], ...]
    segments: int
    microbatches: int
    tp: int = 1

    def __iter__(self) -> Iterator[Instruction]:
        for instructions in self.ranks:
            yield from instructions

    @property
    def behind(self) -> int:
        """Steps between the first and the last instruction for a global batch; 0 where steps do not overlap."""
        return max((instruction.behind for instruction in self), default=0)


Axis = Literal["shards", "replicas"]
"""Which ranks: those that share the tensors of a row, or the replicas of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePoint:
    """A point inside a step of compute.

    Attributes:
        op: id of an operation of its segment
        before: before the operation's part of the step; else after it
    """

    op: str
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A collective inside a step of compute.

    Attributes:
        label: unique within the step, such as "f0"
        kind: what is done
        axis: between whom
        nbytes: of the tensor on each rank: gathered, or before a scatter [bytes]
        start: where it starts
        wait: where the step waits for its end; None: only later instructions wait
    """

    label: str
    kind: Kind
    axis: Axis
    nbytes: int
    start: ComputePoint
    wait: ComputePoint | None = None


def token_of(inner: Inner, segment: int, microbatch: int) -> str:
    """The token of its instruction.

    Example:
        >>> start = ComputePoint(op="fc1")
        >>> token_of(Inner(label="f0", kind=Kind.ALL_REDUCE, axis="shards", nbytes=8, start=start), 2, 5)
        '2AR5#f0'
    """
    return f"{segment}{inner.kind}{microbatch}#{inner.label}"


def inner_marks(inners: Iterable[Inner], segment: int, microbatch: int) -> tuple[Mark, ...]:
    """The marks of a step for its collectives: one where each starts, and one more where the step waits elsewhere.

    Args:
        inners: its collectives
        segment: of the step
        microbatch: of the step
    """
    marks = []
    for inner in inners:
        token = token_of(inner, segment, microbatch)
        here = inner.wait == inner.start
        start, wait = inner.start, inner.wait
        marks.append(Mark(name=inner.label, op=start.op, before=start.before, waits_for=token if here else ""))
        if wait is not None and not here:
            marks.append(Mark(name=f"{inner.label}.wait", op=wait.op, before=wait.before, waits_for=token))
    return tuple(marks)


def inner_instructions(
    inners: Sequence[Inner], step: Instruction, groups: dict[Axis, tuple[int, ...]]
) -> tuple[Instruction, ...]:
    """The instructions of the collectives of a step.

    Args:
        inners: its collectives, in the order in which a group does them
        step: the step
        groups: ranks of each axis
    """
    return tuple(
        Instruction(
            kind=inner.kind,
            rank=step.rank,
            segment=step.segment,
            microbatch=step.microbatch,
            stream=COMMUNICATION,
            group=groups[inner.axis],
            label=inner.label,
            nbytes=inner.nbytes,
            after=(f"{step.token}!{inner.label}",),
        )
        for inner in inners
    )
