"""Stages cut by the recurrence are as equal as brute force can make them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.graph import Affine, Graph, Op, TensorSpec
from trimaran.planner.pipeline_stages import partition


def chain(count: int, cuts: tuple[int, ...] | None = None, nbytes: int = 4) -> Graph:
    """Operations op0 → op1 → …, each making one tensor; cuts after the given ones, or after every one but the last."""
    ops = []
    for index in range(count):
        spec = TensorSpec(name=f"t{index}", shape=("B", 1), dtype="float32", nbytes=Affine(0, nbytes))
        inputs = (f"t{index - 1}",) if index else ("x",)
        ops.append(Op(id=f"op{index}", target="Linear", inputs=inputs, outputs=(spec,)))
    places = range(count - 1) if cuts is None else cuts
    return Graph(
        name="chain",
        inputs=(),
        ops=tuple(ops),
        buffers={},
        storages={},
        split_points=tuple(f"op{place}" for place in places),
    )


def largest_stage(graph: Graph, seconds: dict[str, float], boundaries: tuple[str, ...]) -> float:
    return max(sum(seconds[op.id] for op in part) for part in graph.parts(boundaries))


def test_equal_operations_are_halved() -> None:
    """4 operations of 1 s: 2 + 2."""
    graph = chain(4)
    assert partition(graph, {f"op{index}": 1.0 for index in range(4)}, stages=2) == ("op1",)


def test_a_heavy_operation_stands_alone() -> None:
    """1, 1, 5, 1: cut after op1 it is 2 | 6, after op2 7 | 1; the first has the smaller largest stage."""
    graph = chain(4)
    assert partition(graph, {"op0": 1.0, "op1": 1.0, "op2": 5.0, "op3": 1.0}, stages=2) == ("op1",)


def test_of_equal_stages_the_fewest_bytes_cross() -> None:
    """2, 0, 2: cutting after op0 or op1 gives 2 | 2; the tensor of op1 is the smaller one."""
    graph = chain(3)
    small = TensorSpec(name="t1", shape=("B", 1), dtype="float32", nbytes=Affine(0, 1))
    first, second, third = graph.ops
    graph = Graph(
        name="chain",
        inputs=(),
        ops=(first, Op(id="op1", target="MaxPool2d", inputs=second.inputs, outputs=(small,)), third),
        buffers={},
        storages={},
        split_points=graph.split_points,
    )
    assert partition(graph, {"op0": 2.0, "op1": 0.0, "op2": 2.0}, stages=2) == ("op1",)


def test_too_few_split_points_are_said() -> None:
    with raises("plan.too-few-splits", InfeasibleError, match=r"\b2\b", splits=1, stages=3):
        partition(chain(4, cuts=(1,)), {f"op{index}": 1.0 for index in range(4)}, stages=3)


@given(
    times=st.lists(st.integers(0, 9), min_size=4, max_size=8),
    stages=st.integers(2, 4),
    data=st.data(),
)
def test_the_largest_stage_is_that_of_brute_force(times: list[int], stages: int, data: st.DataObject) -> None:
    places = data.draw(st.sets(st.integers(0, len(times) - 2), min_size=stages - 1))
    graph = chain(len(times), cuts=tuple(sorted(places)))
    seconds = {f"op{index}": float(time) for index, time in enumerate(times)}
    best = min(largest_stage(graph, seconds, cuts) for cuts in itertools.combinations(graph.split_points, stages - 1))
    assert largest_stage(graph, seconds, partition(graph, seconds, stages=stages)) == best
