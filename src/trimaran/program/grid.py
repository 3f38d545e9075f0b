"""A program as a grid of ranks and positions, with arrows at a fault.

           rank 0              rank 1
         0 IN0               0 1RECV_F0<0
         1 0F0         ->    1 1F0
         2 0SEND_F0>1        2 1B0

A small program is drawn whole; of a large one, what is around each spot of the fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.errors import InputError
from trimaran.program.types import Program

WHOLE_RANKS = 8
WHOLE_POSITIONS = 40
AROUND = 4
MOST_SPOTS = 8


@dataclass(frozen=True, slots=True)
class Spot:
    """An instruction by where it stands.

    Attributes:
        rank: number of the list
        position: position in that list
    """

    rank: int
    position: int


def fault(program: Program, rule: int, what: str, spots: Sequence[Spot], advice: str) -> InputError:
    """An error about a program, with its grid.

    Args:
        program: the program
        rule: number of the rule that it breaks
        what: what is wrong, with the values
        spots: where; the first is where the arrow matters most
        advice: what to do

    Returns:
        The error, to be raised.
    """
    message = f"illegal program, rule {rule}: {what}\n{draw_grid(program, spots)}\n{advice}"
    return InputError(
        message, code="program.illegal", rule=rule, places=tuple((spot.rank, spot.position) for spot in spots)
    )


def draw_grid(program: Program, spots: Sequence[Spot]) -> str:
    """The program, or what is around some spots of it, with an arrow at each.

    Args:
        program: the program
        spots: where the arrows point

    Returns:
        One line a position, one column a rank.
    """
    longest = max((len(instructions) for instructions in program.ranks), default=0)
    if len(program.ranks) <= WHOLE_RANKS and longest <= WHOLE_POSITIONS:
        end = max([longest, *(spot.position + 1 for spot in spots)])
        windows = [(rank, 0, end) for rank in range(len(program.ranks))]
    else:
        windows = _windows(spots or [Spot(0, 0)])
    columns = [_column(program, rank, range(first, end), spots) for rank, first, end in windows]
    height = max((len(column) for column in columns), default=0)
    padded = []
    for column in columns:
        width = max(len(cell) for cell in column)
        padded.append([cell.ljust(width) for cell in [*column, *[""] * (height - len(column))]])
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    return "\n".join(lines).rstrip()


def _windows(spots: Sequence[Spot]) -> list[tuple[int, int, int]]:
    """What to draw around the spots: `(rank, first position, end)`; spots that are close to each other share one."""
    windows: list[tuple[int, int, int]] = []
    for spot in sorted(spots[:MOST_SPOTS], key=lambda spot: (spot.rank, spot.position)):
        first, end = max(0, spot.position - AROUND), spot.position + AROUND + 1
        if windows and windows[-1][0] == spot.rank and first <= windows[-1][2]:
            windows[-1] = (spot.rank, windows[-1][1], end)
        else:
            windows.append((spot.rank, first, end))
    return windows


def _column(program: Program, rank: int, positions: range, spots: Sequence[Spot]) -> list[str]:
    marked = {spot.position for spot in spots if spot.rank == rank}
    instructions = program.ranks[rank]
    cells = [f"       rank {rank}"]
    for position in positions:
        token = instructions[position].token if position < len(instructions) else "(end)" if position in marked else ""
        cells.append(f"{'->' if position in marked else '  '} {position:>3} {token}" if token else "")
    return cells
