"""Whether gradients are reduced and applied: rules 10 to 12, and 14."""

from collections.abc import Iterable

from trimaran.program.grid import Spot, fault
from trimaran.program.index import Index
from trimaran.program.orders import BACKWARDS
from trimaran.program.steps import Steps
from trimaran.program.types import COLLECTIVES, Kind

REDUCTIONS = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.REDUCE})


def check_marks(index: Index) -> None:
    """What a mark announces happens: one instruction waits for each mark; rule 10.

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
            if len(found) != 1:
                what = f"{len(found)} instructions wait for the mark {instruction.id}!{mark.name}"
                advice = "Let exactly one instruction name it in `after`, such as the reduction of its bucket."
                raise fault(index.program, 10, what, [spot, *found], advice)


def check_groups(index: Index, steps: Steps) -> None:
    """A collective of a segment is over exactly the ranks that have the segment; rule 11.

    Args:
        index: the program
        steps: its steps of compute

    Raises:
        InputError: a collective of a segment over other ranks
    """
    for spot, instruction in index:
        if instruction.kind in COLLECTIVES and instruction.segment is not None:
            holders = tuple(sorted(steps[instruction.segment]))
            if instruction.group != holders:
                what = f"{instruction.id} is over {instruction.group}; segment {instruction.segment} is on {holders}"
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
        if len(updates) != (1 if backwards else 0):
            what = f"rank {rank} has {len(backwards)} backwards and {len(updates)} updates"
            advice = "A rank that trains updates its parameters once a step, any other never."
            raise fault(index.program, 12, what, updates or backwards[-1:], advice)
        for update in updates:
            awaited = _awaited(index, update)
            for spot in [*backwards, *reductions]:
                early = spot.position > update.position
                if early or (index.at(spot).kind in REDUCTIONS and spot.position not in awaited):
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
        if not any(index.program.ranks[spot.rank][at].kind is Kind.UPDATE for at in _awaited(index, back)):
            what = f"{index.at(back).id} does not wait for the update of its rank"
            raise fault(index.program, 14, what, [back], "Let its `after` lead to the update.")


def _awaited(index: Index, spot: Spot) -> set[int]:
    """Positions of everything that `after` leads to, from one instruction on."""
    found: set[int] = set()
    left = [spot.position]
    while left:
        names = index.program.ranks[spot.rank][left.pop()].after
        for position in _positions(index, spot.rank, names):
            if position not in found:
                found.add(position)
                left.append(position)
    return found


def _positions(index: Index, rank: int, names: Iterable[str]) -> Iterable[int]:
    return (index.positions[rank][name.partition("!")[0]] for name in names)
