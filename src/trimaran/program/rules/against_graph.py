"""Whether a program does for a graph what its strategy says: rule 15.

The rules see a program alone. With its graph it must be the program that `lower` makes in the same order of compute. A
user may reorder steps of compute, but not into another schedule than the strategy names; all else follows from them.
"""

import itertools
from collections.abc import Sequence

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.lowering.lower import lower_as
from trimaran.program.lowering.schedules import COMPUTES, Compute, Order, compute_order
from trimaran.program.rules.fits_graph import check_strategy
from trimaran.program.rules.positions import Spot, fault
from trimaran.program.strategy import PROGRAM_SCHEDULES, Schedule, Strategy
from trimaran.program.text import format_instruction
from trimaran.program.types import Kind, Program


def check_against_graph(program: Program, graph: Graph, strategy: Strategy, *, batch: int) -> None:
    """Refuse a program that loses something of its graph; rule 15.

    Args:
        program: of a training step; legal (`check_program`)
        graph: the network
        strategy: what the program says that it does
        batch: global batch size [samples]

    Raises:
        InputError: a strategy that does not fit the graph, or a program in the order of a schedule that it does not
            name, or one with another instruction than that order has, drawn with an arrow at the first
    """
    check_strategy(graph, strategy, batch=batch)
    order = _order_of(program, strategy)
    _check_schedule(program, order, strategy)
    clip = any(instruction.kind is Kind.CLIP for instruction in program)
    _check_same(program, lower_as(graph, strategy, order, batch=batch, clip=clip), strategy)


def _order_of(program: Program, strategy: Strategy) -> Order:
    """The order of compute of a program, which is that of its first replica."""
    shape = (len(program.ranks), program.segments, program.microbatches, program.tp)
    wanted = (strategy.devices, strategy.segments, strategy.microbatches, strategy.tp)
    if shape != wanted:
        names = ("ranks", "segments", "microbatches", "ranks that share tensors")
        differ = ", ".join(
            f"{found} {name} instead of {expected}"
            for name, found, expected in zip(names, shape, wanted, strict=True)
            if found != expected
        )
        raise InputError(
            f"the program is not one of {strategy.name}: it has {differ}",
            code="program.other-strategy",
            strategy=strategy.name,
        )
    order = tuple(
        tuple(
            Compute(item.kind, item.segment, item.microbatch)
            for item in program.ranks[row * strategy.tp]
            if item.kind in COMPUTES and item.segment is not None and item.microbatch is not None
        )
        for row in range(strategy.pp)
    )
    for row, steps in enumerate(order):
        for step in steps:
            if strategy.rows[step.segment] != row:
                rank = row * strategy.tp
                position = next(at for at, item in enumerate(program.ranks[rank]) if item.token == step.token)
                what = f"r{rank}/{step.token} is on row {row}, and segment {step.segment} belongs to row "
                raise _fault(program, f"{what}{strategy.rows[step.segment]}", [Spot(rank, position)])
    return order


def _check_schedule(program: Program, order: Order, strategy: Strategy) -> None:
    """Refuse the order of one schedule under the name of another; an order of no schedule is welcome."""
    if strategy.parts or strategy.pp == 1 or order == _schedule_order(strategy.schedule, strategy):
        return
    # Only "interleaved" deals a stage several segments. Of one microbatch all orders are alike.
    others = PROGRAM_SCHEDULES[:4] if strategy.chunks == 1 else ()
    name = next((name for name in others if order == _schedule_order(name, strategy)), None)
    if name is not None:
        what = (
            f'the strategy says schedule "{strategy.schedule}", and the order of the program is that of "{name}", '
            "which takes another time and other memory"
        )
        raise _fault(program, what, [Spot(0, 0)])


def _schedule_order(schedule: Schedule, strategy: Strategy) -> Order:
    return compute_order(schedule, stages=strategy.pp, microbatches=strategy.microbatches, chunks=strategy.chunks)


def _check_same(program: Program, wanted: Program, strategy: Strategy) -> None:
    """Refuse the first instruction that is another than in the program that was lowered."""
    for rank, (own, lowered) in enumerate(zip(program.ranks, wanted.ranks, strict=True)):
        for position, (found, expected) in enumerate(itertools.zip_longest(own, lowered)):
            if found == expected:
                continue
            has, lacks = (" ".join(format_instruction(one).split()) if one else "nothing" for one in (found, expected))
            what = f"rank {rank} has {has} where {strategy.name} has {lacks}"
            raise _fault(program, what, [Spot(rank, position)])


def _fault(program: Program, what: str, spots: Sequence[Spot]) -> InputError:
    return fault(program, 15, what, spots, "Lower the strategy again, or put back what was taken out.")
