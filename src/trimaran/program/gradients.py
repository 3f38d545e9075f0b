"""Whether gradients are reduced and applied: rules 10 to 12, and 14."""

from collections.abc import Sequence

from trimaran.program.awaits import named_by
from trimaran.program.grid import Spot, fault
from trimaran.program.index import Index
from trimaran.program.nodes import in_levels, is_last_level
from trimaran.program.orders import BACKWARDS
from trimaran.program.steps import Steps
from trimaran.program.types import COLLECTIVES, Instruction, Kind

REDUCTIONS = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.REDUCE})


def check_marks(index: Index) -> None:
    """What a mark announces happens: one instruction waits for each mark; rule 10.

    A mark at which its own instruction waits may start nothing.

    Args:
        index: the program

    Raises:
        InputError: a mark that nothing waits for, or several things
    """
    waiting: dict[tuple[int, str], list[Spot]] = {}
    for spot, instruction in index:
        for name in instruction.after:
            if "!" in name:
                waiting.setdefault((spot.rank, name), []).append(spot)
    for spot, instruction in index:
        for mark in instruction.marks:
            found = waiting.get((spot.rank, f"{instruction.token}!{mark.name}"), [])
            if len(found) != 1 and (found or not mark.waits_for):
                what = f"{len(found)} instructions wait for the mark {instruction.id}!{mark.name}"
                advice = "Let exactly one instruction name it in `after`, such as the reduction of its bucket."
                raise fault(index.program, 10, what, [spot, *found], advice)


def check_groups(index: Index, steps: Steps) -> None:
    """A collective of a segment is over exactly the ranks that hold the same of it, or that share it; rule 11.

    Args:
        index: the program
        steps: its steps of compute

    Raises:
        InputError: a collective of a segment over other ranks
    """
    tp = index.program.tp
    for spot, instruction in index:
        if instruction.kind in COLLECTIVES and instruction.segment is not None:
            holders = sorted(steps[instruction.segment])
            replicas = tuple(rank for rank in holders if rank % tp == spot.rank % tp)
            shards = tuple(rank for rank in holders if rank // tp == spot.rank // tp)
            if instruction.group not in (replicas, shards) and not in_levels(index, spot, replicas):
                held = f"segment {instruction.segment} is on {tuple(holders)}"
                if tp > 1:
                    held += f", in the same shard on {replicas}, in the same row on {shards}"
                what = f"{instruction.id} is over {instruction.group}; {held}"
                raise fault(index.program, 11, what, [spot], "Reduce over all replicas of the segment.")


def check_updates(index: Index) -> None:
    """Every rank that trains updates once, after all its gradients and all its reductions; rule 12.

    Args:
        index: the program

    Raises:
        InputError: no update or two, or one that does not wait for something
    """
    for rank, instructions in enumerate(index.program.ranks):
        backwards, reductions, updates = (
            [Spot(rank, position) for position, instruction in enumerate(instructions) if instruction.kind in kinds]
            for kinds in (BACKWARDS, REDUCTIONS, {Kind.UPDATE})
        )
        gathers = [Spot(rank, position) for position, one in enumerate(instructions) if is_last_level(one)]
        if len(updates) != (1 if backwards else 0):
            what = f"rank {rank} has {len(backwards)} backwards and {len(updates)} updates"
            advice = "A rank that trains updates its parameters once a step, any other never."
            raise fault(index.program, 12, what, updates or backwards[-1:], advice)
        for update in updates:
            awaited = _with_earlier(instructions, named_by(index, update) | _awaited_inside(index, rank))
            for spot in [*backwards, *reductions, *gathers]:
                early = spot.position > update.position
                if early or (index.at(spot).kind not in BACKWARDS and spot.position not in awaited):
                    what = f"{index.at(update).id} does not wait for {index.at(spot).id}"
                    advice = "List the update last, and let its `after` lead to every reduction of the rank."
                    raise fault(index.program, 12, what, [update, spot], advice)


def check_homes(index: Index) -> None:
    """What is reduced to one rank comes back from it, updated; rule 14.

    Args:
        index: the program

    Raises:
        InputError: a reduce without a broadcast of its label from its root, or one that does not wait for the update
    """
    for spot, instruction in index:
        if instruction.kind is not Kind.REDUCE:
            continue
        back = index.find(spot.rank, instruction.token.replace(Kind.REDUCE, Kind.BROADCAST, 1))
        if back is None or index.at(back).home != instruction.home or index.at(back).nbytes != instruction.nbytes:
            what = f"{instruction.id} ends at rank {instruction.home}, and nothing of its size comes back from there"
            advice = "Broadcast what the root has updated, under the same label."
            raise fault(index.program, 14, what, [spot] if back is None else [spot, back], advice)
        if not any(index.program.ranks[spot.rank][at].kind is Kind.UPDATE for at in named_by(index, back)):
            what = f"{index.at(back).id} does not wait for the update of its rank"
            raise fault(index.program, 14, what, [back], "Let its `after` lead to the update.")


def _awaited_inside(index: Index, rank: int) -> set[int]:
    """Positions of what steps of a rank stand still for; the update runs after them on the same stream."""
    marks = (mark for instruction in index.program.ranks[rank] for mark in instruction.marks)
    return {index.positions[rank][mark.waits_for] for mark in marks if mark.waits_for}


def _with_earlier(instructions: Sequence[Instruction], awaited: set[int]) -> set[int]:
    """Also what is inside earlier steps: the library that does it there waits for each before the next of its group."""
    last: dict[tuple[int, ...], int] = {}
    for position in awaited:
        item = instructions[position]
        if item.microbatch is not None:
            last[item.group] = max(position, last.get(item.group, position))
    return awaited | {
        position
        for position, item in enumerate(instructions)
        if item.microbatch is not None and item.kind in COLLECTIVES and position <= last.get(item.group, -1)
    }
