"""Whether the parts of a placement cover a graph, can run one after the other, and keep together what must be.

What must stay together are the operations between two neighbouring cuts of the graph (`Graph.cuts`): one of them may
write in place what another has made, or share its running state.
"""

from collections.abc import Sequence

from trimaran.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.segments import segment_ops
from trimaran.program.types import Strategy


def check_parts(graph: Graph, strategy: Strategy) -> None:
    """Refuse parts that cannot be lowered.

    Args:
        graph: the graph
        strategy: with parts

    Raises:
        InputError: an operation that is missing or there twice, a part that reads what a later one makes, a row
            without a part, operations apart that must be together, an order of backwards that cannot run
    """
    if strategy.boundaries or strategy.chunks > 1:
        raise InputError(
            "a placement (Strategy.parts) has no boundaries and no chunks: its parts are its segments",
            code="parts.with-boundaries",
            boundaries=strategy.boundaries,
            chunks=strategy.chunks,
        )
    _check_cover(graph, strategy)
    _check_rows(strategy)
    _check_together(graph, strategy)
    _check_orders(graph, strategy)


def stretches(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Ids of the operations that must be in one part: those between two neighbouring cuts, in order."""
    return tuple(tuple(op.id for op in ops) for ops in graph.parts(graph.cuts))


def _check_cover(graph: Graph, strategy: Strategy) -> None:
    parts = segment_ops(graph, strategy)
    seen: dict[str, int] = {}
    place = {op.id: number for number, op in enumerate(graph.ops)}
    for number, ops in enumerate(parts):
        if not ops:
            raise InputError(f"part {number} of the placement has no operations", code="parts.empty", part=number)
        for op in ops:
            if op.id in seen:
                raise InputError(
                    f'operation "{op.id}" is in part {seen[op.id]} and in part {number} of the placement: every '
                    "operation is in exactly one",
                    code="parts.operation-twice",
                    op=op.id,
                )
            seen[op.id] = number
        order = [place[op.id] for op in ops]
        if order != sorted(order):
            raise InputError(
                f"the operations of part {number} are not in the order of the graph",
                code="parts.not-in-graph-order",
                part=number,
            )
    missing = [op.id for op in graph.ops if op.id not in seen]
    if missing:
        raise InputError(
            f"the placement loses {_listed(missing)}: every operation of {graph.name!r} is in exactly one part",
            code="parts.operation-missing",
            missing=tuple(missing),
        )


def _check_rows(strategy: Strategy) -> None:
    empty = sorted(set(range(strategy.pp)) - set(strategy.rows))
    wrong = sorted({row for row in strategy.rows if not 0 <= row < strategy.pp})
    if empty or wrong:
        what = f"row {empty[0]} of the placement has no part" if empty else f"a part is on row {wrong[0]}"
        raise InputError(
            f"{what}; it has rows 0 to {strategy.pp - 1} (Strategy.pp={strategy.pp}), each with at least one part",
            code="parts.empty-row",
            rows=strategy.rows,
            pp=strategy.pp,
        )


def _check_together(graph: Graph, strategy: Strategy) -> None:
    owner = {name: number for number, part in enumerate(strategy.parts) for name in part.ops}
    for stretch in stretches(graph):
        apart = [name for name in stretch if owner[name] != owner[stretch[0]]]
        if apart:
            raise InputError(
                f'"{stretch[0]}" and "{apart[0]}" must be in one part, and are in parts {owner[stretch[0]]} and '
                f"{owner[apart[0]]}: one may write in place what the other makes. {graph.name!r} can be divided after "
                f"{_listed(graph.cuts)}",
                code="parts.in-place-split",
                together=stretch,
            )


def _check_orders(graph: Graph, strategy: Strategy) -> None:
    crossing = graph.exchanged(segment_ops(graph, strategy))
    for (producer, consumer), specs in crossing.items():
        if producer > consumer:
            raise InputError(
                f'part {consumer} reads "{specs[0].name}", which part {producer} makes after it: list the parts in an '
                "order in which their forwards can run, and divide parts that need each other",
                code="parts.reads-later-part",
                parts=(producer, consumer),
            )
    order = strategy.backward_order
    if not order:
        return
    if sorted(order) != list(range(strategy.segments)):
        raise InputError(
            f"Strategy.backward_order must name each of the {strategy.segments} parts once, got {_listed(order)}",
            code="parts.bad-backward-order",
            backward_order=order,
        )
    place = {segment: position for position, segment in enumerate(order)}
    for (producer, consumer), specs in crossing.items():
        if place[producer] < place[consumer] and any(spec.requires_grad for spec in specs):
            raise InputError(
                f"Strategy.backward_order runs part {producer} before part {consumer}, which gives it the gradient of "
                f'"{specs[0].name}"',
                code="parts.gradient-not-ready",
                backward_order=order,
                parts=(producer, consumer),
            )


def _listed(values: Sequence[object], most: int = 12) -> str:
    shown = ", ".join(str(value) for value in values[:most])
    return f"{shown}, ... ({len(values)} in all)" if len(values) > most else shown
