"""Steps that overlap, written out as one program.

Of a pipeline that is never flushed each step has one forward and one backward on each stage, of different global
batches. `Instruction.behind` says how many steps before the global batch began that an instruction works on:

    the step of rank 0      0F0              0B0 behind=1    U behind=1
    three steps written     0F0   0F1 0B0 U0   0F2 0B1 U1   0B2 U2
    out                     fills  ........ goes on ......  drains

Written out, the number of a global batch stands in the place of the microbatch, so that all that reads programs reads
these: the rules, the event engine, and the runtime, which numbers the few global batches under way in a circle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trimaran.program.types import Instruction, Program


def of_batch(instructions: Sequence[Instruction], number: int) -> dict[str, Instruction]:
    """The instructions of a rank for one global batch, by their token in the step.

    Args:
        instructions: of one rank, in a program of one microbatch
        number: of the global batch, which tokens then have in place of the microbatch

    Example:
        >>> from trimaran.program.types import Kind
        >>> update = Instruction(kind=Kind.UPDATE, rank=0, after=("AR#loss",), behind=1)
        >>> loss = Instruction(kind=Kind.ALL_REDUCE, rank=0, group=(0, 1), label="loss")
        >>> of_batch([loss, update], 7)["U"].token, of_batch([loss, update], 7)["U"].after
        ('U7', ('AR7#loss',))
    """
    numbered = {one.token: replace(one, microbatch=number, behind=0) for one in instructions}
    return {
        token: replace(one, after=tuple(numbered[name].token if name in numbered else name for name in one.after))
        for token, one in numbered.items()
    }


def steps_of(instructions: Sequence[Instruction], steps: int, behind: int) -> Iterator[tuple[int, str, int]]:
    """What a rank does in some steps and until all of them are done.

    Args:
        instructions: of the rank
        steps: how many global batches there are
        behind: `Program.behind`

    Yields:
        The number of the step, the token of the instruction, and the number of its global batch, in order.
    """
    for step in range(steps + behind):
        for instruction in instructions:
            number = step - instruction.behind
            if 0 <= number < steps:
                yield step, instruction.token, number


def unroll(program: Program, steps: int) -> Program:
    """Several steps of a program as one, from an empty pipeline to an empty one.

    Args:
        program: whose steps overlap, of one microbatch
        steps: how many global batches there are

    Returns:
        A program of as many microbatches, each with its own update.

    Example:
        >>> from trimaran.program.types import Kind
        >>> forward = Instruction(kind=Kind.FORWARD, rank=0, segment=0, microbatch=0)
        >>> backward = Instruction(kind=Kind.BACKWARD, rank=0, segment=0, microbatch=0, behind=1)
        >>> program = Program(ranks=((forward, backward),), segments=1, microbatches=1)
        >>> [one.token for one in unroll(program, 2)]
        ['0F0', '0F1', '0B0', '0B1']
    """
    behind = program.behind
    ranks = []
    for instructions in program.ranks:
        batches = [of_batch(instructions, number) for number in range(steps)]
        ranks.append(tuple(batches[number][token] for _, token, number in steps_of(instructions, steps, behind)))
    return Program(ranks=tuple(ranks), segments=program.segments, microbatches=steps, tp=program.tp)
