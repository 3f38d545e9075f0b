"""Spans of instructions over time: the result of every interpreter of a program.

The simulator, the runtime and the emulator all give a `Timeline`, whose spans carry the ids of the instructions of the
program. A prediction and a measurement of the same program are therefore compared line by line.

A lane is `(rank, stream)`. Within a lane spans do not overlap, except on the communication stream: transfers on
different channels run side by side, and a measured span starts when it is posted. Times are seconds from the start of
the first step; the clocks of a measured timeline are aligned across ranks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

COMPUTE = "compute"
COMMUNICATION = "communication"
COPY = "copy"
HOST = "host"
WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One interval on one lane.

    Attributes:
        rank: the rank
        stream: the stream on that rank
        start_s: start [s]
        end_s: end [s]
        instruction: id of the instruction in its program
        nbytes: bytes moved, 0 for compute
        step: number of the training step
    """

    rank: int
    stream: str
    start_s: float
    end_s: float
    instruction: str
    nbytes: int = 0
    step: int = 0

    @property
    def seconds(self) -> float:
        """Length of the interval [s]."""
        return self.end_s - self.start_s


class Columns(NamedTuple):
    """The spans of a timeline, one list a field of `Span`, all of one length."""

    rank: list[int]
    stream: list[str]
    start_s: list[float]
    end_s: list[float]
    instruction: list[str]
    nbytes: list[int]
    step: list[int]


class Timeline:
    """Spans, kept as columns and ordered by rank, start and instruction.

    Args:
        spans: the spans, in any order
        memory: for each rank, `(time [s], live bytes)` at every change; empty where it was not followed
        after_s: what follows the last span, of no instruction: copies of gradients, waits for the slowest rank [s]
        waits_s: the waits in it [s]
        period_s: time from a step to the next one, where steps overlap: that of a step is longer; 0: they do not [s]

    Example:
        >>> timeline = Timeline([Span(rank=0, stream="compute", start_s=0.0, end_s=2.0, instruction="r0/0F0")])
        >>> timeline.makespan_s
        2.0
    """

    __slots__ = ("after_s", "columns", "memory", "period_s", "waits_s")

    after_s: float
    waits_s: float
    period_s: float
    columns: Columns
    memory: tuple[tuple[tuple[float, int], ...], ...]

    def __init__(
        self,
        spans: Iterable[Span],
        memory: Sequence[Sequence[tuple[float, int]]] = (),
        *,
        after_s: float = 0.0,
        waits_s: float = 0.0,
        period_s: float = 0.0,
    ) -> None:
        rows = (
            (span.rank, span.start_s, span.end_s, span.instruction, span.stream, span.nbytes, span.step)
            for span in spans
        )
        self._keep(rows, memory, after_s, waits_s, period_s)

    @classmethod
    def from_columns(
        cls,
        columns: Columns,
        memory: Sequence[Sequence[tuple[float, int]]] = (),
        *,
        after_s: float = 0.0,
        waits_s: float = 0.0,
        period_s: float = 0.0,
    ) -> "Timeline":
        """A timeline of columns in any order, without making a `Span` of each row.

        Args:
            columns: the fields of the spans, all of one length
            memory: as for `Timeline`
            after_s: as for `Timeline` [s]
            waits_s: as for `Timeline` [s]
            period_s: as for `Timeline` [s]

        Raises:
            ValueError: columns of different lengths
        """
        rank, stream, start_s, end_s, instruction, nbytes, step = columns
        timeline = cls.__new__(cls)
        rows = zip(rank, start_s, end_s, instruction, stream, nbytes, step, strict=True)
        timeline._keep(rows, memory, after_s, waits_s, period_s)
        return timeline

    def _keep(
        self,
        rows: Iterable[tuple[int, float, float, str, str, int, int]],
        memory: Sequence[Sequence[tuple[float, int]]],
        after_s: float,
        waits_s: float,
        period_s: float,
    ) -> None:
        self.after_s = after_s
        self.waits_s = waits_s
        self.period_s = period_s
        columns = [list(column) for column in zip(*sorted(rows), strict=True)] or [[] for _ in Columns._fields]
        rank, start_s, end_s, instruction, stream, nbytes, step = columns
        self.columns = Columns(rank, stream, start_s, end_s, instruction, nbytes, step)
        self.memory = tuple(tuple(changes) for changes in memory)

    def __len__(self) -> int:
        return len(self.columns.rank)

    def __iter__(self) -> Iterator[Span]:
        for rank, stream, start_s, end_s, instruction, nbytes, step in zip(*self.columns, strict=True):
            yield Span(
                rank=rank,
                stream=stream,
                start_s=start_s,
                end_s=end_s,
                instruction=instruction,
                nbytes=nbytes,
                step=step,
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timeline):
            return NotImplemented
        mine, theirs = ((one.columns, one.memory, one.after_s, one.waits_s, one.period_s) for one in (self, other))
        return mine == theirs

    def __hash__(self) -> int:
        return hash((len(self), self.makespan_s))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have spans, ascending."""
        return tuple(sorted(set(self.columns.rank)))

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have spans, ascending."""
        return tuple(sorted(set(self.columns.step)))

    @property
    def makespan_s(self) -> float:
        """Time from the first start to the last end, and what follows it [s]; 0 when empty. Or the period of steps."""
        if self.period_s:
            return self.period_s + self.after_s
        return max(self.columns.end_s, default=0.0) - min(self.columns.start_s, default=0.0) + self.after_s

    def select(self, *, rank: int | None = None, stream: str | None = None, step: int | None = None) -> "Timeline":
        """The spans of one rank, stream or step, as a timeline."""
        return Timeline(
            span
            for span in self
            if (rank is None or span.rank == rank)
            and (stream is None or span.stream == stream)
            and (step is None or span.step == step)
        )

    def peak_bytes(self, rank: int) -> int:
        """Largest live bytes of a rank [bytes]; 0 where memory was not followed."""
        if rank >= len(self.memory):
            return 0
        return max((nbytes for _, nbytes in self.memory[rank]), default=0)
