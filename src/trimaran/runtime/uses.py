"""When things of a step are needed for the last time on a rank, so that they are kept no longer."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from trimaran.program.types import Instruction, Kind

_READERS = (Kind.FORWARD, Kind.EVALUATE)
_COMPLETING = (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """What the list of a rank says about last uses.

    Attributes:
        batches: tokens of the forwards that read a microbatch last
        values: for the token of each forward or send, the names of the tensors that it uses last
        completing: for each segment, the microbatches of its backwards (or of their second halves), in order
        split: segments whose backward is divided into I and W
    """

    batches: Collection[str]
    values: Mapping[str, Sequence[str]]
    completing: Mapping[int, Sequence[int]]
    split: Collection[int]


def find_uses(
    instructions: Sequence[Instruction],
    reads: Mapping[int, Sequence[str]],
    sends: Callable[[Instruction], Sequence[str]],
) -> Uses:
    """Go through the list of a rank.

    Args:
        instructions: of the rank
        reads: for each segment of the rank, names of the tensors of other segments that it reads
        sends: names of the tensors that a message carries
    """
    batches: dict[int | None, str] = {}
    last: dict[tuple[int | None, str], str] = {}
    completing: dict[int, list[int]] = {}
    split = set()
    for instruction in instructions:
        microbatch, segment = instruction.microbatch, instruction.segment
        names: Sequence[str] = ()
        if instruction.kind in _READERS:
            batches[microbatch] = instruction.token
            names = reads.get(segment, ()) if segment is not None else ()
        elif instruction.kind is Kind.SEND_FORWARD:
            names = sends(instruction)
        elif instruction.kind in _COMPLETING and segment is not None and microbatch is not None:
            completing.setdefault(segment, []).append(microbatch)
        if instruction.kind is Kind.BACKWARD_INPUT:
            split.add(segment)
        for name in names:
            last[microbatch, name] = instruction.token
    values: dict[str, list[str]] = {}
    for (_, name), token in last.items():
        values.setdefault(token, []).append(name)
    return Uses(
        batches=frozenset(batches.values()),
        values=values,
        completing=completing,
        split=frozenset(segment for segment in split if segment is not None),
    )
