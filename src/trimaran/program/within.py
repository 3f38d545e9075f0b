"""The collectives inside the steps of a row, in the order in which the steps pass them."""

from collections.abc import Mapping, Sequence

from trimaran.graph.types import Graph, Op
from trimaran.program.cut import Cut
from trimaran.program.inner import Inner
from trimaran.program.orders import BACKWARDS, Compute
from trimaran.program.sharded import tensor_collectives
from trimaran.program.types import Kind, Mark, Strategy
from trimaran.program.zero import zero_collectives


def row_inners(
    graph: Graph,
    strategy: Strategy,
    cut: Cut,
    steps: Sequence[Compute],
    completing: Mapping[int, Compute],
) -> dict[Compute, tuple[Inner, ...]]:
    """The collectives inside each step of a row.

    Args:
        graph: the network
        strategy: what is sharded
        cut: the graph, in the segments of the strategy
        steps: of the row, in order
        completing: for each segment, its last step that adds to gradients

    Returns:
        For each step that has any, its collectives in the order in which it starts them.
    """
    if strategy.dp == 1 and strategy.tp == 1:
        return {}
    seen: set[tuple[Kind, int]] = set()
    made: dict[tuple[Kind, int, bool, bool], tuple[Inner, ...]] = {}
    found = {}
    for step in steps:
        first = (step.kind, step.segment) not in seen
        seen.add((step.kind, step.segment))
        key = step.kind, step.segment, first, completing.get(step.segment) == step
        if key not in made:
            made[key] = _step_inners(graph, strategy, cut, *key)
        if made[key]:
            found[step] = made[key]
    return found


def in_order(marks: Sequence[Mark], ops: Sequence[Op], *, backward: bool) -> tuple[Mark, ...]:
    """Marks in the order in which a step passes them; those of one point as they were.

    Args:
        marks: of the step
        ops: operations of its segment, in order
        backward: it runs them in reverse
    """
    place = {op.id: -number if backward else number for number, op in enumerate(ops)}
    return tuple(sorted(marks, key=lambda mark: (place[mark.op], not mark.before)))


def _step_inners(
    graph: Graph, strategy: Strategy, cut: Cut, kind: Kind, segment: int, first: bool, last: bool
) -> tuple[Inner, ...]:
    ops = cut.parts[segment]
    found = [
        *tensor_collectives(graph, ops, strategy, samples=cut.microbatch, kind=kind),
        *zero_collectives(graph, ops, strategy, kind=kind, first=first, last=last),
    ]
    place = {op.id: -number if kind in BACKWARDS else number for number, op in enumerate(ops)}

    def moment(inner: Inner) -> tuple[int, bool]:
        return place[inner.start.op], not inner.start.before

    return tuple(sorted(found, key=moment))
