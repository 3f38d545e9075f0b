"""Whether a program does for a graph what its strategy says: rule 15.

The rules see a program alone. The rest is checked here against the program that `lower` makes of the graph in the same
order of compute: its messages with their bytes, its buckets, the sums of weights that segments share, and all waits.
A user may reorder instructions and let them wait for more, but not into another schedule than the strategy names.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.lowering.lower import lower_as
from trimaran.program.lowering.partition import routes_of, segment_ops, tied_segments
from trimaran.program.lowering.schedules import COMPUTES, Compute, Order, check_order, compute_order
from trimaran.program.rules.fits_graph import check_strategy
from trimaran.program.rules.positions import Index, Spot, awaited_on, fault, index_program
from trimaran.program.strategy import PROGRAM_SCHEDULES, Schedule, Strategy
from trimaran.program.types import RECEIVES, SENDS, Instruction, Kind, Program


def check_against_graph(program: Program, graph: Graph, strategy: Strategy, *, batch: int) -> None:
    """Refuse a program that loses something of its graph; rule 15.

    Args:
        program: of a training step; legal (`check_program`)
        graph: the network
        strategy: what the program says that it does
        batch: global batch size [samples]

    Raises:
        InputError: a strategy that does not fit the graph, or a program in the order of a schedule that it does not
            name, or one that lacks an instruction, moves other bytes, or does not wait for what it needs, drawn with
            an arrow at the fault
    """
    check_strategy(graph, strategy, batch=batch)
    order = _order_of(program, strategy)
    _check_schedule(program, order, strategy)
    clip = any(instruction.kind is Kind.CLIP for instruction in program)
    wanted = lower_as(graph, strategy, order, batch=batch, clip=clip)
    index = index_program(program)
    for rank, instructions in enumerate(wanted.ranks):
        for instruction in instructions:
            spot = index.find(rank, instruction.token)
            if spot is None:
                near = _near(index, rank, instruction, instructions)
                raise _fault(program, f"it lacks {instruction.id}: {_purpose(instruction, graph, strategy)}", [near])
    for rank, instructions in enumerate(wanted.ranks):
        for instruction in instructions:
            _check_same(index, Spot(rank, index.positions[rank][instruction.token]), instruction, graph, strategy)
        known = {instruction.token for instruction in instructions}
        for spot, instruction in _of_rank(index, rank):
            if instruction.token not in known:
                what = f"{instruction.id} is there, and {strategy.name} of {graph.name!r} has no such instruction"
                raise _fault(program, what, [spot])
        _check_waits(index, rank, instructions)


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
    check_order(order)
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
    if strategy.parts or strategy.pp == 1:
        return
    own = _schedule_order(strategy.schedule, strategy)
    if order == own:
        return
    # Only "interleaved" deals a stage several segments.
    for name in PROGRAM_SCHEDULES if strategy.chunks == 1 else ():
        # Of one microbatch all orders are alike; `behind` tells this one from them.
        if name != "pipedream" and order == _schedule_order(name, strategy):
            row, at = next(
                (row, at)
                for row, steps in enumerate(order)
                for at, step in enumerate(steps)
                if at >= len(own[row]) or step != own[row][at]
            )
            rank, token = row * strategy.tp, order[row][at].token
            position = next(place for place, item in enumerate(program.ranks[rank]) if item.token == token)
            what = (
                f'the strategy says schedule "{strategy.schedule}", and the order of the program is that of "{name}", '
                "which takes another time and other memory"
            )
            raise _fault(program, what, [Spot(rank, position)])


def _schedule_order(schedule: Schedule, strategy: Strategy) -> Order:
    return compute_order(schedule, stages=strategy.pp, microbatches=strategy.microbatches, chunks=strategy.chunks)


def _check_same(index: Index, spot: Spot, wanted: Instruction, graph: Graph, strategy: Strategy) -> None:
    found = index.at(spot)
    for name in ("stream", "peer", "group", "root", "nbytes", "behind"):
        one, other = getattr(found, name), getattr(wanted, name)
        if one != other:
            unit = " bytes" if name == "nbytes" else ""
            what = f"{found.id} has {name}={one}{unit}, and it must be {other}{unit}: "
            raise _fault(index.program, what + _purpose(wanted, graph, strategy), [spot])
    lost = Counter(wanted.marks) - Counter(found.marks)
    if lost:
        mark = next(iter(lost))
        where = f'{"before" if mark.before else "after"} operation "{mark.op}"'
        waits = f", waiting for {mark.waits_for}" if mark.waits_for else ""
        raise _fault(index.program, f"{found.id} lacks the mark {mark.name} {where}{waits}", [spot])


def _check_waits(index: Index, rank: int, wanted: Sequence[Instruction]) -> None:
    """Each instruction waits at least for what it waits for when it is lowered, whatever lies between."""
    awaited = awaited_on(index, rank)
    for instruction in wanted:
        position = index.positions[rank][instruction.token]
        own = index.program.ranks[rank][position].after
        for name in instruction.after:
            token, _, mark = name.partition("!")
            needed = index.positions[rank][token]
            # To wait for all of a step is to wait for a mark of it too.
            passed = not mark or name in own or token in own
            if not passed or not awaited[position] >> needed & 1:
                what = f"{instruction.id} does not wait for {name}"
                raise _fault(index.program, what, [Spot(rank, position), Spot(rank, needed)])


def _of_rank(index: Index, rank: int) -> Iterator[tuple[Spot, Instruction]]:
    for position, instruction in enumerate(index.program.ranks[rank]):
        yield Spot(rank, position), instruction


def _near(index: Index, rank: int, missing: Instruction, wanted: Sequence[Instruction]) -> Spot:
    """The place of a missing instruction: after those before it in the lowered list."""
    position = 0
    for instruction in wanted:
        if instruction is missing:
            break
        spot = index.find(rank, instruction.token)
        position = position if spot is None else spot.position + 1
    return Spot(rank, position)


def _purpose(instruction: Instruction, graph: Graph, strategy: Strategy) -> str:
    """The purpose of an instruction, with names of the graph."""
    kind, label = instruction.kind, instruction.label
    parts = segment_ops(graph, strategy)
    if label.startswith("tie"):
        name, users = list(tied_segments(graph, parts).items())[int(label.removeprefix("tie"))]
        return (
            f'segments {", ".join(map(str, users))} share the weight "{name}"; without the sum of its gradients their '
            "copies drift apart"
        )
    if kind in SENDS or kind in RECEIVES:
        outward = kind in (Kind.SEND_FORWARD, Kind.RECEIVE_BACKWARD)
        pair = (instruction.segment, instruction.peer_segment)
        producer, consumer = pair if outward else pair[::-1]
        routes = routes_of(graph, parts, strategy.rows)
        specs = (spec for one in routes if (one.producer, one.consumer) == (producer, consumer) for spec in one.tensors)
        names = ", ".join(f'"{spec.name}"' for spec in specs)
        what = "gradient of " if kind in (Kind.SEND_BACKWARD, Kind.RECEIVE_BACKWARD) else ""
        return f"segment {consumer} reads {names} of segment {producer}, and this is the way of the {what}tensor"
    if label.startswith("b") and label[1:].isdecimal():
        return "it sums the gradients of a bucket over the replicas; without it their weights drift apart"
    if kind is Kind.LOAD:
        return "its row reads this microbatch of the data"
    return "it is a part of every step of this strategy"


def _fault(program: Program, what: str, spots: Sequence[Spot]) -> InputError:
    return fault(program, 15, what, spots, "Lower the strategy again, or put back what was taken out.")
