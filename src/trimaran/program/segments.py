"""Which operations each segment of a strategy holds: a chain cut at boundaries, or the parts of a placement."""

from trimaran.errors import InputError
from trimaran.graph.types import Graph, Op
from trimaran.program.types import Strategy


def segment_ops(graph: Graph, strategy: Strategy) -> tuple[tuple[Op, ...], ...]:
    """The operations of each segment, in the order of the graph.

    Args:
        graph: the network
        strategy: where it is cut, or placed

    Raises:
        InputError: a part names an operation that the graph does not have
    """
    if not strategy.parts:
        return graph.parts(strategy.boundaries)
    known = {op.id: op for op in graph.ops}
    unknown = next((name for part in strategy.parts for name in part.ops if name not in known), None)
    if unknown is not None:
        raise InputError(
            f"a part of the placement names {unknown!r}, which {graph.name} does not have",
            code="parts.unknown-operation",
            op=unknown,
        )
    return tuple(tuple(known[name] for name in part.ops) for part in strategy.parts)
