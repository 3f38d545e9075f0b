"""A program as a grid of ranks and positions, with arrows at a fault.

           rank 0              rank 1
         0 IN0               0 1RECV_F0<0
         1 0F0         ->    1 1F0
         2 0SEND_F0>1        2 1B0

A small program is drawn whole; of a large one, the windows around each spot of the fault.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.program.types import Instruction, Program

WHOLE_RANKS = 8
WHOLE_POSITIONS = 40
AROUND = 4
MOST_SPOTS = 8


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of an instruction.

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
    """Windows around the spots: `(rank, first position, end)`; spots that are close to each other share one."""
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


# ---------------------------------------------------------------------------------------------------------------------
# The tokens of a program and their places: rule 1


@dataclass(frozen=True, slots=True)
class Index:
    """A program with its tokens.

    Attributes:
        program: the program
        entries: every instruction and where it stands, rank after rank
        positions: for each rank, the position of each token
    """

    program: Program
    entries: tuple[tuple[Spot, Instruction], ...]
    positions: tuple[Mapping[str, int], ...]

    def __iter__(self) -> Iterator[tuple[Spot, Instruction]]:
        return iter(self.entries)

    def find(self, rank: int, token: str) -> Spot | None:
        """Place of a token on a rank; None where it is not there."""
        position = self.positions[rank].get(token)
        return None if position is None else Spot(rank, position)

    def at(self, spot: Spot) -> Instruction:
        """The instruction at a spot."""
        return self.program.ranks[spot.rank][spot.position]


def index_program(program: Program) -> Index:
    """Find every token; rule 1.

    Args:
        program: the program

    Returns:
        Its index.

    Raises:
        InputError: no rank, an instruction in the list of another rank, or a token that is there twice
    """
    if not program.ranks or program.segments < 1 or program.microbatches < 1:
        raise InputError(
            f"illegal program, rule 1: it has {len(program.ranks)} ranks, {program.segments} segments and "
            f"{program.microbatches} microbatches; it needs at least one of each",
            code="program.empty",
        )
    positions: list[dict[str, int]] = []
    entries = []
    for rank, instructions in enumerate(program.ranks):
        tokens: dict[str, int] = {}
        for position, instruction in enumerate(instructions):
            if instruction.rank != rank:
                what = f"{instruction.id} is in the list of rank {rank}"
                raise fault(program, 1, what, [Spot(rank, position)], "Move it to the list of its rank.")
            entries.append((Spot(rank, position), instruction))
            earlier = tokens.setdefault(instruction.token, position)
            if earlier != position:
                spots = [Spot(rank, position), Spot(rank, earlier)]
                raise fault(program, 1, f"{instruction.id} is there twice", spots, "Give one of them another label.")
        positions.append(tokens)
    return Index(program, tuple(entries), tuple(positions))


# ---------------------------------------------------------------------------------------------------------------------
# Instructions that have surely ended when one of a rank starts


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


def positions_of(index: Index, rank: int, names: Iterable[str]) -> Iterable[int]:
    """Positions of the instructions that `after` names."""
    return (index.positions[rank][name.partition("!")[0]] for name in names)
