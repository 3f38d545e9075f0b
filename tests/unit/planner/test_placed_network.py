"""A network as a placement problem, and an answer as parts of a strategy; on a fork of two branches of two operations.

input -> a -+-> b1 -> b2 -+-> join -> loss
            +-> c1 -> c2 -+
"""

import pytest
from tests import builders

from trimaran.graph.types import Affine, Graph, Op, Parameter, TensorSpec
from trimaran.placement.problem import PlacementProblem, Wire
from trimaran.placement.solve import place
from trimaran.planner.placed_network import parts_of, placement_problem
from trimaran.program.rules.fits_graph import check_parts

READS = {
    "a": ["input"],
    "b1": ["a"],
    "b2": ["b1"],
    "c1": ["a"],
    "c2": ["c1"],
    "join": ["b2", "c2"],
    "loss": ["join", "target"],
}


def spec(name: str) -> TensorSpec:
    """Four bytes a sample."""
    return TensorSpec(name=name, shape=("B",), dtype="float32", nbytes=Affine(0.0, 4.0), requires_grad=True)


def network(cuts: tuple[str, ...] = tuple(READS)[:-1]) -> Graph:
    """The fork; every operation but the loss has a parameter of 8 bytes and saves what it makes."""
    return Graph(
        name="fork",
        inputs=(spec("input"), spec("target")),
        targets=("target",),
        ops=tuple(
            Op(
                id=name,
                target=name,
                module=name,
                inputs=tuple(reads),
                outputs=(spec(name),),
                parameters=() if name == "loss" else (f"{name}.weight",),
                saved=(f"{name}/0",),
            )
            for name, reads in READS.items()
        ),
        parameters=tuple(
            Parameter(name=f"{name}.weight", shape=(2,), dtype="float32", nbytes=8) for name in READS if name != "loss"
        ),
        buffers={},
        storages={f"{name}/0": Affine(0.0, 4.0) for name in READS},
        split_points=cuts,
    )


def problem_of(graph: Graph, **pinned: int) -> PlacementProblem:
    """One second for everything in a branch, nothing elsewhere; a tensor takes 0.1 s."""
    seconds = {op.id: 1.0 if op.id[0] in "bc" else 0.0 for op in graph.ops}
    return placement_problem(
        graph,
        seconds,
        seconds,
        batch=10,
        memory_bytes=(1e9, 1e9),
        wires={pair: Wire(bytes_per_s=400.0, links=(f"{pair[0]}>{pair[1]}",)) for pair in ((0, 1), (1, 0))},
        state_bytes_per_byte=1.0,
        pinned=pinned,
    )


def test_sizes_are_those_of_the_batch() -> None:
    """40 bytes of output; 8 of weights, 8 of gradients and 8 of state; saved: its own 40."""
    node = problem_of(network()).nodes[1]
    assert (node.name, node.nbytes, node.backward_nbytes, node.state_bytes, node.saved_bytes) == ("b1", 40, 40, 24, 40)
    loss = problem_of(network()).nodes[-1]
    assert (loss.nbytes, loss.state_bytes) == (0, 0)


def test_branches_become_parts_on_two_rows() -> None:
    """2 + 0.1 s there, or back, each way."""
    graph = network()
    answer = place(problem_of(graph), time_limit_s=5)
    assert answer.makespan_s == pytest.approx(4.2, rel=1e-5)
    parts, backward_order = parts_of(answer, graph)
    check_parts(graph, builders.strategy(pp=2, parts=parts, backward_order=backward_order))
    assert {part.row for part in parts} == {0, 1}
    assert ("b1", "b2") in [part.ops for part in parts] or ("b1", "b2") in [part.ops[:2] for part in parts]
    assert "loss" in parts[-1].ops
    assert len(parts) <= 4


def test_what_cannot_be_cut_stays_in_one_part() -> None:
    graph = network(cuts=("a", "b2", "c2", "join"))
    problem = problem_of(graph)
    assert [node.name for node in problem.nodes] == ["a", "b1", "c1", "join", "loss"]
    parts, backward_order = parts_of(place(problem, time_limit_s=5), graph)
    check_parts(graph, builders.strategy(pp=2, parts=parts, backward_order=backward_order))


def test_pins_of_operations_hold_for_their_stretch() -> None:
    graph = network(cuts=("a", "b2", "c2", "join"))
    answer = place(problem_of(graph, b2=1, c1=1), time_limit_s=5)
    assert answer.device_of["b1"] == answer.device_of["c1"] == 1


def test_one_device_is_one_part() -> None:
    graph = network()
    answer = place(problem_of(graph, **dict.fromkeys(READS, 0)), time_limit_s=5)
    parts, backward_order = parts_of(answer, graph)
    assert (len(parts), backward_order) == (1, (0,))
