"""The rules of a legal program.

A program that keeps them can be simulated and run, and never deadlocks, even on a transport without buffers.

     1  Every instruction stands in the list of its own rank, and no token stands there twice.
     2  The fields of an instruction fit its kind, and lie within the program's ranks, segments and microbatches.
     3  `after` names earlier instructions of the same rank, or marks that they have. What a mark waits for is earlier
        too, or started by a mark of the same instruction.
     4  Every segment is on as many ranks as every other (its replicas), and runs there for every microbatch: F then B,
        or F then I then W; in an evaluation EV, and nothing else.
     5  A receive is listed before the step that reads it, and a send after the step that makes it; the second of each
        pair names the first.
     6  Every microbatch of a segment is exchanged with the same segments, in the same sizes.
     7  A loaded microbatch is used by a step of that microbatch.
     8  The n-th send on a channel (source rank, destination rank) meets the n-th receive on it: of the same direction,
        segments, microbatch and bytes.
     9  The n-th collective of a group on one member meets the n-th on every other: of the same token, bytes and root.
    10  Exactly one instruction waits for each mark; none may, where its own instruction waits at it.
    11  A collective of a segment is over exactly the ranks that hold the same of it: its replicas; or over those that
        share its tensors in one replica; or it is a level of a sum over the replicas: a reduce-scatter within a node,
        an all-reduce over one rank of each node, an all-gather within the node, of one label, each after the other.
    12  Every rank that trains updates once: after all its backwards, and waiting for all its reductions, and for the
        gathers of those in levels.
    13  With both ends of a message, and all members of a collective, as one, and an instruction that stands still at
        marks as a chain of pieces: nothing waits for itself.
    14  What is reduced to one rank comes back: a broadcast of the same label, bytes and root waits for the update.

Not seen from a program alone: whether the bytes are those of the tensors that cross, and whether every trained
parameter is in a bucket. `check_against_graph` has rule 15: a program moves, reduces and waits for what `lower` makes
it move, reduce and wait for in the same order of compute.
"""

from trimaran.program.deadlock import check_progress
from trimaran.program.form import check_after, check_fields
from trimaran.program.gradients import check_groups, check_homes, check_marks, check_updates
from trimaran.program.index import index_program
from trimaran.program.matching import match_collectives, match_messages
from trimaran.program.steps import check_data, check_loads, check_steps, check_uniform
from trimaran.program.types import Program


def check_program(program: Program) -> None:
    """Refuse a program that breaks a rule.

    Args:
        program: the program

    Raises:
        InputError: with the number of the rule (`figures["rule"]`), and the program drawn with an arrow at the fault
    """
    index = index_program(program)  # 1
    check_fields(index)  # 2
    check_after(index)  # 3
    steps = check_steps(index)  # 4
    check_data(index)  # 5
    check_uniform(index)  # 6
    check_loads(index)  # 7
    channels = match_messages(program)  # 8
    groups = match_collectives(program)  # 9
    check_marks(index)  # 10
    check_groups(index, steps)  # 11
    check_updates(index)  # 12
    check_homes(index)  # 14
    check_progress(program, [*channels, *groups], index.positions)  # 13
