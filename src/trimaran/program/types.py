"""Instruction, program: what each rank does; and, from `strategy`, what was decided.

A program is plain data: it prints, parses, diffs. It describes one step; every step of a run executes it again. One
list a rank; instructions of a rank are issued in the order of its list. Those on one stream also run in that order,
except that what communicates only keeps the order of its channel or group.

Cross-rank dependencies are not written down, they follow from matching: the n-th send on a channel `(source rank,
destination rank)` meets the n-th receive on it, and the n-th collective of a group on one member meets the n-th on
the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from trimaran.program.strategy import Execution, Part, Schedule, Shard, ShardStyle, Strategy, Sync
from trimaran.timeline import COMPUTE

__all__ = [
    "COLLECTIVES",
    "RECEIVES",
    "ROOTED",
    "SENDS",
    "Execution",
    "Instruction",
    "Kind",
    "Mark",
    "Part",
    "Program",
    "Schedule",
    "Shard",
    "ShardStyle",
    "Strategy",
    "Sync",
]


class Kind(StrEnum):
    """What an instruction does. Values are the tokens of the text form."""

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
    stands still there until another one has ended: a tensor-parallel sum, the gather of a sharded layer's weights. A
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

    @property
    def token(self) -> str:
        """Name within its rank: torch's pipelining token, with the other segment and the label added.

        Example:
            >>> Instruction(kind=Kind.SEND_FORWARD, rank=0, segment=0, microbatch=3, peer=1, peer_segment=1).token
            '0SEND_F3>1'
        """
        segment = "" if self.segment is None else str(self.segment)
        microbatch = "" if self.microbatch is None else str(self.microbatch)
        if self.peer_segment is None:
            end = ""
        else:
            end = f"{'>' if self.kind in SENDS else '<'}{self.peer_segment}"
        return f"{segment}{self.kind}{microbatch}{end}{'#' if self.label else ''}{self.label}"

    @property
    def id(self) -> str:
        """Name within its program: `r<rank>/<token>`."""
        return f"r{self.rank}/{self.token}"

    @property
    def home(self) -> int:
        """The rank that a broadcast starts from, or that a reduce ends at; no other kind has one.

        Example:
            >>> Instruction(kind=Kind.REDUCE, rank=0, group=(0, 1), root=1).home
            1
        """
        return self.group[0] if self.root is None else self.root

    @property
    def communicates(self) -> bool:
        """Whether another rank takes part."""
        return self.kind in SENDS or self.kind in RECEIVES or self.kind in COLLECTIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What each rank does in one step.

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
