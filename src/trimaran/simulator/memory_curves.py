"""Live bytes of each rank over time."""

from collections.abc import Sequence

from trimaran.costs.types import ProgramCosts
from trimaran.errors import InputError
from trimaran.program.types import Program


def live_bytes(
    program: Program,
    costs: ProgramCosts,
    *,
    identifiers: Sequence[str],
    starts_s: Sequence[float],
    ends_s: Sequence[float],
) -> tuple[tuple[tuple[float, int], ...], ...]:
    """Follow what lives on each rank.

    What lives from the start of an instruction on is counted at its start, what dies at its end is dropped at its end.
    At one instant, what ends frees first, then what starts allocates, in the order of the list; an instruction that
    takes no time allocates and frees in its turn.

    Args:
        program: what each rank does
        costs: its resident bytes, and the bytes that live and die with its instructions
        identifiers: id of each instruction, rank after rank
        starts_s: start of each instruction, rank after rank [s]
        ends_s: end of each instruction, rank after rank [s]

    Returns:
        For each rank, `(time [s], live bytes)`: the resident bytes at time 0, then every change.

    Raises:
        InputError: more dies than lives
    """
    memory = costs.memory
    first = 0
    curves = []
    for rank, instructions in enumerate(program.ranks):
        events = []
        for position in range(first, first + len(instructions)):
            identifier = identifiers[position]
            if identifier in memory:
                born, died = memory[identifier]
                start_s, end_s = starts_s[position], ends_s[position]
                if born:
                    events.append((start_s, 1, position, 0, born, identifier))
                if died:
                    events.append((end_s, int(end_s == start_s), position, 1, -died, identifier))
        first += len(instructions)
        live = costs.resident_bytes[rank] if rank < len(costs.resident_bytes) else 0
        curve = [(0.0, live)]
        for time_s, _, _, _, change, identifier in sorted(events):
            live += change
            if live < 0:
                raise InputError(
                    f"{identifier} frees {-change} bytes at {time_s} s and leaves {live} on rank {rank}: "
                    f"ProgramCosts.memory must not let more die than lives",
                    code="simulator.frees-too-much",
                    instruction=identifier,
                    rank=rank,
                )
            curve.append((time_s, live))
        curves.append(tuple(curve))
    return tuple(curves)
