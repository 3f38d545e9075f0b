"""Whether each instruction, taken alone, makes sense, and waits for what can come: rules 2 and 3."""

import re
from collections.abc import Iterator

from trimaran.program.grid import Spot, fault
from trimaran.program.index import Index
from trimaran.program.orders import COMPUTES
from trimaran.program.types import COLLECTIVES, RECEIVES, ROOTED, SENDS, Instruction, Kind, Mark, Program

NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""What a label, a stream or a mark may be called, so that tokens can be read back."""


def check_fields(index: Index) -> None:
    """The fields of an instruction fit its kind and the program; rule 2.

    Args:
        index: the program

    Raises:
        InputError: a field that is missing, out of range or out of place
    """
    for spot, instruction in index:
        for wrong in _wrong_fields(instruction, index.program):
            _refuse(index.program, spot, instruction, wrong)


def check_after(index: Index) -> None:
    """An instruction waits for earlier ones of its rank; rule 3.

    Args:
        index: the program

    Raises:
        InputError: a name in `after` that is no earlier instruction of the rank, or no mark of it
    """
    for spot, instruction in index:
        for name in instruction.after:
            token, has_mark, mark = name.partition("!")
            found = index.find(spot.rank, token)
            if found is None:
                what = f"{instruction.id} waits for {name}, and rank {spot.rank} has no {token}"
                raise fault(index.program, 3, what, [spot], "Name an earlier instruction of the same rank.")
            if found.position >= spot.position:
                what = f"{instruction.id} waits for {name}, which is not before it"
                raise fault(index.program, 3, what, [spot, found], "List it after what it waits for.")
            if has_mark and all(mark != known.name for known in index.at(found).marks):
                known = ", ".join(known.name for known in index.at(found).marks) or "none"
                what = f"{instruction.id} waits for {name}; the marks of {token} are: {known}"
                raise fault(index.program, 3, what, [spot, found], "Name a mark that the instruction has.")
        for waiting in instruction.marks:
            if waiting.waits_for:
                _check_waiting_mark(index, spot, instruction, waiting)


def _check_waiting_mark(index: Index, spot: Spot, instruction: Instruction, mark: Mark) -> None:
    """What a mark waits for is there: before the instruction, or started by it."""
    found = index.find(spot.rank, mark.waits_for)
    name = f"{instruction.id}!{mark.name}"
    if found is None:
        what = f"{name} waits for {mark.waits_for}, and rank {spot.rank} has no such instruction"
        raise fault(index.program, 3, what, [spot], "Name an instruction of the same rank, without a mark.")
    if found.position <= spot.position:
        if found.position == spot.position:
            what = f"{name} waits for the end of its own instruction"
            raise fault(index.program, 3, what, [spot], "Let it wait for what a mark of the instruction starts.")
        return
    started = {name.partition("!")[0] for name in index.at(found).after if "!" in name}
    if instruction.token not in started:
        what = f"{name} waits for {mark.waits_for}, which is listed after it and which no mark of it starts"
        advice = "List it before the instruction, or let its `after` name a mark of the instruction."
        raise fault(index.program, 3, what, [spot, found], advice)


def _refuse(program: Program, spot: Spot, instruction: Instruction, wrong: str) -> None:
    raise fault(program, 2, f"{instruction.id}: {wrong}", [spot], "See the instruction schema for what each kind has.")


def _wrong_fields(instruction: Instruction, program: Program) -> Iterator[str]:
    ranks = len(program.ranks)
    kind = instruction.kind
    message = kind in SENDS or kind in RECEIVES
    for field, value, count in (
        ("segment", instruction.segment, program.segments),
        ("peer_segment", instruction.peer_segment, program.segments),
        ("microbatch", instruction.microbatch, program.microbatches),
        ("peer", instruction.peer, ranks),
    ):
        if value is not None and not 0 <= value < count:
            yield f"{field} is {value}, and there are {count}, counted from 0"
    if (message or kind in COMPUTES) and (instruction.segment is None or instruction.microbatch is None):
        yield "it needs a segment and a microbatch"
    if kind is Kind.LOAD and instruction.microbatch is None:
        yield "it needs a microbatch"
    if message != (instruction.peer is not None) or message != (instruction.peer_segment is not None):
        yield "a peer and a peer_segment are there exactly where something is sent or received"
    if instruction.peer == instruction.rank:
        yield "its peer is its own rank"
    if (kind in COLLECTIVES) != bool(instruction.group):
        yield "a group is there exactly where there is a collective"
    if instruction.group:
        yield from _wrong_group(instruction, ranks)
    if instruction.root is not None and (kind not in ROOTED or instruction.root not in instruction.group):
        yield f"its root is {instruction.root}: a broadcast or a reduce has one, which is of its group"
    if instruction.nbytes < 0:
        yield f"nbytes is {instruction.nbytes}"
    names = [instruction.stream, *([instruction.label] if instruction.label else [])]
    names += [mark.name for mark in instruction.marks]
    for name in names:
        if not NAME.fullmatch(name):
            yield f"the name {name!r} may have letters, digits, '_', '.' and '-' only"
    if instruction.marks and kind not in COMPUTES:
        yield "only a step of compute has marks"
    if len({mark.name for mark in instruction.marks}) < len(instruction.marks):
        yield "two of its marks have the same name"


def _wrong_group(instruction: Instruction, ranks: int) -> Iterator[str]:
    group = instruction.group
    if len(group) < 2 or list(group) != sorted(set(group)) or group[0] < 0 or group[-1] >= ranks:
        yield f"its group {group} must be at least two different ranks below {ranks}, ascending"
    if instruction.rank not in group:
        yield f"its group {group} lacks its own rank"
