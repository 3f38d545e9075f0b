"""What has surely ended when an instruction of a rank starts."""

from collections.abc import Iterable

from trimaran.program.grid import Spot
from trimaran.program.index import Index
from trimaran.timeline import COMPUTE, HOST


def named_by(index: Index, spot: Spot) -> set[int]:
    """Positions of everything that `after` and waiting marks lead to, from one instruction on.

    Args:
        index: the program
        spot: the instruction
    """
    found: set[int] = set()
    left = [spot.position]
    while left:
        waiting = index.program.ranks[spot.rank][left.pop()]
        names = [*waiting.after, *(mark.waits_for for mark in waiting.marks if mark.waits_for)]
        for position in positions_of(index, spot.rank, names):
            if position not in found:
                found.add(position)
                left.append(position)
    return found


def awaited_on(index: Index, rank: int) -> list[int]:
    """What has ended before each instruction of a rank starts: by name, or by the order of compute and host work.

    An instruction that a mark starts waits for its step up to the mark, which counts as the whole. That collectives of
    a group run one after the other does not count: who reads what one has made must wait for that one.

    Args:
        index: the program
        rank: whose list

    Returns:
        For each instruction a set of positions, as the bits of a number.
    """
    earlier: dict[str, int] = {}
    started: list[int] = []
    ended: list[int] = []
    for position, item in enumerate(index.program.ranks[rank]):
        ordered = item.stream in (COMPUTE, HOST)
        mask = ended[earlier[item.stream]] if ordered and item.stream in earlier else 0
        for other in positions_of(index, rank, item.after):
            mask |= ended[other]
        started.append(mask)
        inside = sum({1 << index.positions[rank][mark.waits_for] for mark in item.marks if mark.waits_for})
        ended.append(mask | 1 << position | inside)
        if ordered:
            earlier[item.stream] = position
    return started


def positions_of(index: Index, rank: int, names: Iterable[str]) -> Iterable[int]:
    """Positions of the instructions that `after` names."""
    return (index.positions[rank][name.partition("!")[0]] for name in names)
