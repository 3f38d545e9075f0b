"""The tokens of a program, and where each stands: rule 1."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trimaran.errors import InputError
from trimaran.program.grid import Spot, fault
from trimaran.program.types import Instruction, Program


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
        """Where a token stands on a rank; None where it does not."""
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
                what = f"{instruction.id} stands in the list of rank {rank}"
                raise fault(program, 1, what, [Spot(rank, position)], "Move it to the list of its own rank.")
            entries.append((Spot(rank, position), instruction))
            earlier = tokens.setdefault(instruction.token, position)
            if earlier != position:
                spots = [Spot(rank, position), Spot(rank, earlier)]
                raise fault(program, 1, f"{instruction.id} is there twice", spots, "Give one of them another label.")
        positions.append(tokens)
    return Index(program, tuple(entries), tuple(positions))
