"""Strategy, instruction, program: what was decided, and what each rank does.

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
from typing import Literal

from trimaran.program.buckets import DEFAULT_BUCKET_BYTES
from trimaran.timeline import COMPUTE
from trimaran.units import format_bytes


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

    Attributes:
        name: unique within the instruction, such as "b0": gradient bucket 0 is complete
        op: id of the graph operation after whose part of the instruction the point lies
    """

    name: str
    op: str


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
    """

    ranks: tuple[tuple[Instruction, ...], ...]
    segments: int
    microbatches: int

    def __iter__(self) -> Iterator[Instruction]:
        for instructions in self.ranks:
            yield from instructions


Schedule = Literal["gpipe", "1f1b"]
Execution = Literal["eager", "compiled"]
Sync = Literal["all-reduce", "p2p"]
"""How replicas stay alike. "all-reduce": gradients are summed on every rank, and every rank updates everything. "p2p":
each bucket has a home, which sums its gradients, updates its weights, and hands them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What was decided.

    Ranks are laid out replica by replica: rank = replica * pp + stage.

    Attributes:
        dp: data-parallel replicas
        pp: pipeline stages, one segment each
        boundaries: last operation of every segment but the last (`Graph.cuts`)
        schedule: order of forwards and backwards in a pipeline; with one stage it is microbatch by microbatch
        microbatches: microbatches of a replica's share of the global batch; with one stage: gradient accumulation
        bucket_bytes: size at which a bucket of gradients is sent [bytes]; 1: every parameter by itself
        execution: segments as they are, or each through torch.compile
        memory_bytes: memory in which a rank's step is made to fit by offloading and recomputing [bytes]; None: all that
            autograd saves is kept
        sync: how replicas stay alike; "p2p" is for whole networks (pp=1)
    """

    dp: int = 1
    pp: int = 1
    boundaries: tuple[str, ...] = ()
    schedule: Schedule = "gpipe"
    microbatches: int = 1
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    execution: Execution = "eager"
    memory_bytes: int | None = None
    sync: Sync = "all-reduce"

    @property
    def devices(self) -> int:
        """Ranks that take part."""
        return self.dp * self.pp

    @property
    def name(self) -> str:
        """Short form for tables.

        Example:
            >>> Strategy(dp=2).name, Strategy(pp=2, boundaries=("conv2",), schedule="1f1b", microbatches=4).name
            ('dp2', 'pp2 1f1b m4')
            >>> Strategy(dp=2, microbatches=2, bucket_bytes=2**20).name
            'dp2 m2 b1MiB'
            >>> Strategy(dp=2, sync="p2p", bucket_bytes=1).name
            'dp2 p2p b1B'
            >>> Strategy(memory_bytes=12 * 2**30).name
            'one device in 12.0 GiB'
        """
        parts = []
        if self.dp > 1:
            parts.append(f"dp{self.dp}")
        if self.pp > 1:
            parts.append(f"pp{self.pp} {self.schedule}")
        if not parts:
            parts.append("one device")
        if self.dp > 1 and self.sync != "all-reduce":
            parts.append(self.sync)
        if self.microbatches > 1:
            parts.append(f"m{self.microbatches}")
        if self.dp > 1 and self.bucket_bytes != DEFAULT_BUCKET_BYTES:
            parts.append(f"b{_round_size(self.bucket_bytes)}")
        if self.execution != "eager":
            parts.append(self.execution)
        if self.memory_bytes is not None:
            parts.append(f"in {format_bytes(self.memory_bytes)}")
        return " ".join(parts)


def _round_size(nbytes: int) -> str:
    """A size in the largest unit that leaves no fraction."""
    return next(f"{nbytes // size}{unit}" for unit, size in _UNITS if nbytes % size == 0)


_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
