"""In which order a channel between two rows of a placement delivers."""

import dataclasses

from tests import builders
from tests.graphs import dag

from trimaran.graph.types import Affine, Graph
from trimaran.program.lowering.lower import lower
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import Part

# op0 and op1 are on row 0, in this order; op2, which reads op1, and then op3, which reads op0 and op2, on row 1.
READS = [[], [], [1], [0, 2]]
PARTS = (
    Part(ops=("op0",), row=0),
    Part(ops=("op1",), row=0),
    Part(ops=("op2",), row=1),
    Part(ops=("op3", "loss"), row=1),
)
STRATEGY = builders.strategy(pp=2, parts=PARTS)


def working(seconds: dict[str, float], nbytes: dict[str, int]) -> Graph:
    """The graph with so many operations and bytes: a step takes as long as it has operations."""
    graph = dag(READS)
    ops = tuple(
        dataclasses.replace(
            op,
            flops=Affine(seconds.get(op.id, 1.0), 0.0),
            backward_flops=Affine(seconds.get(op.id, 1.0), 0.0),
            outputs=tuple(
                dataclasses.replace(spec, nbytes=Affine(float(nbytes.get(spec.name, 4)), 0.0)) for spec in op.outputs
            ),
        )
        for op in graph.ops
    )
    return dataclasses.replace(graph, ops=ops)


def sends(graph: Graph) -> list[str]:
    program = lower(graph, STRATEGY, batch=2)
    check_program(program)
    return [item.token for item in program.ranks[0] if "SEND_F" in item.token]


def test_what_is_needed_first_goes_first_although_it_is_made_a_little_later() -> None:
    """t0 is large and made first; op2 wants t1, and has much to do with it while t0 is on its way."""
    graph = working({"op0": 1.0, "op1": 1.0, "op2": 300_000.0}, {"t0": 1000, "t1": 4})
    assert sends(graph) == ["1SEND_F0>2", "0SEND_F0>3"]


def test_what_is_made_first_goes_first_where_that_is_faster() -> None:
    """op1 takes longer than t0 is on its way: to hold t0 back would have op3 wait for it in the end."""
    graph = working({"op0": 1.0, "op1": 300_000.0, "op2": 1.0}, {"t0": 1000, "t1": 4})
    assert sends(graph) == ["0SEND_F0>3", "1SEND_F0>2"]
