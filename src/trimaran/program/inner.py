"""Communication inside a step of compute: collectives that a library does there, and when.

A tensor-parallel sum in the middle of a forward, the gather of a layer's weights before it, the scatter of its
gradients after it. Each is an instruction of its own, listed after its step and started by a mark of it; where the step
cannot go on without it, a mark of the step waits for it.

    0F0    ────────●──────────────●━━━━━━●─────▶     ● start of f0 and wait for it: the step stands still
    0AR0#f0        f0 ════════╗
                              ╚═ ends before the second ● goes on

What collectives there are follows from what is sharded (`sharded.py`, `zero.py`); here they become marks and
instructions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from trimaran.program.types import Instruction, Kind, Mark
from trimaran.timeline import COMMUNICATION

Axis = Literal["shards", "replicas"]
"""Which ranks: those that share the tensors of a row, or the replicas of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
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
        wait: where the step stands still until it has ended; None: only what comes later waits
    """

    label: str
    kind: Kind
    axis: Axis
    nbytes: int
    start: Point
    wait: Point | None = None


def token_of(inner: Inner, segment: int, microbatch: int) -> str:
    """The token of its instruction.

    Example:
        >>> start = Point(op="fc1")
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
