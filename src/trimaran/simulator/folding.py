"""Programs of which only one replica is there.

Replicas that do the same at the same time arrive together, so a collective over all of them starts when those of its
members arrive that are there. Its price is that of the whole group.
"""

from dataclasses import replace

from trimaran.program.types import Program


def of_those_there(program: Program) -> Program:
    """The program with its groups cut down to the ranks that it has; itself where all are there.

    Args:
        program: what each rank does, or what the ranks of one replica do
    """
    there = len(program.ranks)
    if all(not item.group or item.group[-1] < there for item in program):
        return program
    groups: dict[tuple[int, ...], tuple[int, ...]] = {}
    ranks = []
    for instructions in program.ranks:
        listed = []
        for item in instructions:
            if item.group and item.group[-1] >= there:
                if item.group not in groups:
                    groups[item.group] = tuple(rank for rank in item.group if rank < there)
                item = replace(item, group=groups[item.group])
            listed.append(item)
        ranks.append(tuple(listed))
    return replace(program, ranks=tuple(ranks))
