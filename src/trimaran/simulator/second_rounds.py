"""Collectives of two sums: a second transfer for all members, and who starts it when (`costs.two_rounds`)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trimaran.costs.types import ProgramCosts
from trimaran.program.types import Instruction, Mark, Program
from trimaran.simulator.columns import Tasks, wait


def with_turns(program: Program, costs: ProgramCosts) -> Program:
    """The program with marks where an instruction stands still for a first sum, and where it starts the second one.

    Args:
        program: one step
        costs: of it
    """
    if not costs.second_rounds:
        return program
    return replace(program, ranks=tuple(_with_turns(instructions, costs) for instructions in program.ranks))


def _with_turns(instructions: Sequence[Instruction], costs: ProgramCosts) -> tuple[Instruction, ...]:
    added: dict[tuple[str, str], tuple[Mark, Mark]] = {}
    for item in instructions:
        second = costs.second_rounds.get(item.id)
        if second is not None and second.turn is not None:
            turn = second.turn
            marks = Mark(name=turn.pause, op="", waits_for=item.token), Mark(name=turn.start, op="")
            added[turn.instruction, turn.before] = marks

    def turning(item: Instruction) -> Instruction:
        marks = [one for mark in item.marks for one in (*added.get((item.id, mark.name), ()), mark)]
        return replace(item, marks=tuple(marks)) if len(marks) > len(item.marks) else item

    return tuple(map(turning, instructions))


def add_second_rounds(
    tasks: Tasks, collectives: Iterable[Sequence[tuple[int, ...]]], costs: ProgramCosts
) -> dict[int, int]:
    """Add a task for each second sum, which waits for its first one.

    Args:
        tasks: priced
        collectives: of each group in order, the positions of the instructions that meet
        costs: of the program

    Returns:
        The task of the second sum by that of the first.
    """
    found: dict[int, int] = {}
    if not costs.second_rounds:
        return found
    for positions in (meeting for queue in collectives for meeting in queue):
        second = costs.second_rounds.get(tasks.identifiers[positions[0]])
        if second is not None:
            first = tasks.number[positions[0]]
            task = found[first] = tasks.add(positions[0], work_s=second.transfer.flow_s, lane=-1)
            tasks.members[task], tasks.flow[task] = tasks.members[first], tasks.flow[first]
            tasks.latency_s[task] = second.transfer.latency_s
            wait(tasks, task, first)
    return found


def in_line(queue: Sequence[tuple[int, ...]], number: Sequence[int], second_of: Mapping[int, int]) -> list[int]:
    """The transfers of a group in the order of their issue; a second sum follows its first, as later ones wait for it.

    Args:
        queue: positions of the instructions that meet, in order
        number: task of each position
        second_of: made by `add_second_rounds`
    """
    line = []
    for meeting in queue:
        first = number[meeting[0]]
        line += [first, second_of[first]] if first in second_of else [first]
    return line
