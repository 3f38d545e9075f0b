"""Waiting for data that are made beside the training: where they come once in a period that is longer than the step.

    rank 0   IN0 ▒▒▒▒▒▒▒▒▒▒ F0 ████ B0 ████████ U ██    with its data there, a step takes less than the period
             └ period - step ┘

Steps repeat. Whoever makes the data does so all the time, during messages and other ranks' compute too, so what a step
waits is the period less the whole step. It waits for its first microbatch: later ones were made meanwhile.
"""

from dataclasses import replace

from trimaran.costs.types import Cost, ProgramCosts
from trimaran.program.types import Kind, Program
from trimaran.simulator.engine import simulate


def with_waits(program: Program, costs: ProgramCosts) -> ProgramCosts:
    """The costs of a program with what its first loads wait.

    Args:
        program: one step
        costs: perhaps with a period

    Returns:
        Costs without a period: the first load of each rank is longer by the wait. The same costs where there is none.

    Example:
        >>> from trimaran.program.types import Instruction
        >>> load = Instruction(kind=Kind.LOAD, rank=0, microbatch=0, stream="host")
        >>> program = Program(ranks=((load,),), segments=1, microbatches=1)
        >>> one, three = (Cost(seconds, seconds, seconds, "example") for seconds in (1.0, 3.0))
        >>> with_waits(program, ProgramCosts(compute={load.id: one}, period=three)).compute[load.id].seconds
        3.0
    """
    period = costs.period
    if period is None:
        return costs
    costs = replace(costs, period=None)
    alone_s = simulate(program, costs).makespan_s
    wait_s = period.seconds - alone_s
    if wait_s <= 0.0:
        return costs
    low_s, high_s = max(0.0, period.low - alone_s), max(wait_s, period.high - alone_s)
    compute = dict(costs.compute)
    for instructions in program.ranks:
        first = next((item for item in instructions if item.kind == Kind.LOAD), None)
        if first is not None:
            known = compute[first.id]
            compute[first.id] = Cost(known.seconds + wait_s, known.low + low_s, known.high + high_s, known.source)
    return replace(costs, compute=compute)
