"""Stages cut by the recurrence are as equal as brute force can make them."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.graph.types import Affine, Graph, Op, TensorSpec
from trimaran.planner.pipeline_stages import StageLinks, partition
from trimaran.program.lowering.schedules import compute_order, start_times
from trimaran.program.strategy import Schedule, Strategy
from trimaran.program.types import Kind


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


def widths(*nbytes: int) -> Graph:
    """A chain whose operations make tensors of these sizes."""
    graph = chain(len(nbytes))
    return replace(
        graph,
        ops=tuple(
            replace(op, outputs=(replace(op.outputs[0], nbytes=Affine(0, size)),))
            for op, size in zip(graph.ops, nbytes, strict=True)
        ),
    )


WIDE = widths(1, 9, 1, 9, 1, 9, 1, 9)
EVEN = {f"op{number}": 1.0 for number in range(8)}


def stages(number: int, schedule: Schedule, *seconds: float) -> StageLinks:
    return StageLinks(strategy=Strategy(pp=number, microbatches=8, schedule=schedule), seconds=seconds)


@pytest.mark.parametrize(
    ("schedule", "a_byte_s", "boundary"),
    [("1f1b", 0.0, "op3"), ("1f1b", 1e-4, "op3"), ("1f1b", 0.5, "op2"), ("gpipe", 0.1, "op3"), ("gpipe", 0.4, "op2")],
)
def test_slow_links_are_crossed_where_little_crosses(schedule: Schedule, a_byte_s: float, boundary: str) -> None:
    """4 | 4 where 9 bytes cross, 3 | 5 where one does. GPipe sends while it computes, so it feels less."""
    assert partition(WIDE, EVEN, stages=2, links=stages(2, schedule, a_byte_s)) == (boundary,)


def test_only_boundaries_over_the_slow_link_move() -> None:
    """Three stages, of which the second boundary goes over a network."""
    graph = widths(1, 1, 9, 1, 1, 9, 1, 1, 1)
    even = {f"op{number}": 1.0 for number in range(9)}
    assert partition(graph, even, stages=3) == ("op2", "op5")
    assert partition(graph, even, stages=3, links=stages(3, "1f1b", 0.0, 1.0)) == ("op1", "op4")


@given(
    st.lists(st.integers(1, 9), min_size=5, max_size=8),
    st.lists(st.integers(1, 9), min_size=8, max_size=8),
    st.sampled_from(["gpipe", "1f1b", "zero-bubble"]),
    st.floats(0.0, 1.0),
)
def test_links_that_count_never_make_a_step_longer(
    seconds: list[int], nbytes: list[int], schedule: Schedule, a_byte_s: float
) -> None:
    graph = widths(*nbytes[: len(seconds)])
    each = {f"op{number}": float(one) for number, one in enumerate(seconds)}
    links = stages(3, schedule, a_byte_s, a_byte_s)

    def step_s(boundaries: tuple[str, ...]) -> float:
        parts = graph.parts(boundaries)
        crossing = [float(nbytes[graph.ops.index(part[-1])]) for part in parts[:-1]]
        return links.step_s([sum(each[op.id] for op in part) for part in parts], [a_byte_s * one for one in crossing])

    free, counted = (partition(graph, each, stages=3, links=one) for one in (None, links))
    assert step_s(counted) <= step_s(free) * (1.0 + 1e-9)


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


def rows_of(graph: Graph, seconds: dict[str, float], boundaries: tuple[str, ...], stages: int) -> list[float]:
    """What each stage does for a microbatch, over all of its segments."""
    times = [sum(seconds[op.id] for op in part) for part in graph.parts(boundaries)]
    return [sum(times[row::stages]) for row in range(stages)]


@given(st.lists(st.integers(1, 9), min_size=8, max_size=12))
def test_stages_of_two_segments_are_nearly_as_equal_as_brute_force_makes_them(work: list[int]) -> None:
    """Two stages of two segments: all splits are tried. Single moves may end within the largest operation."""
    graph, seconds = chain(len(work)), {f"op{index}": float(time_s) for index, time_s in enumerate(work)}
    found = partition(graph, seconds, stages=2, chunks=2)
    splits = itertools.combinations(graph.split_points, 3)
    best = min(max(rows_of(graph, seconds, tuple(split), 2)) for split in splits)
    assert max(rows_of(graph, seconds, found, 2)) <= best + max(work) / 2


def test_a_stage_with_a_heavy_last_segment_gets_a_light_first_one() -> None:
    """23 of 1 s and a last one of 6 s, on four stages of two segments: the mean of a stage is 7.25 s.

    By the largest segment alone every segment may take 6 s, and the last stage would have 6 s and another three.
    """
    work = [1.0] * 23 + [6.0]
    graph, seconds = chain(len(work)), {f"op{index}": time_s for index, time_s in enumerate(work)}
    rows = rows_of(graph, seconds, partition(graph, seconds, stages=4, chunks=2), 4)
    assert max(rows) <= 8.0
    assert min(rows) >= 7.0


@pytest.mark.parametrize(("chunks", "idle"), [(1, 3 / 11), (2, 3 / 19), (3, 3 / 27)])
def test_equal_operations_idle_no_longer_than_the_formula_says(chunks: int, idle: float) -> None:
    """(K-1)/(vM+K-1) of a step, for K = 4 stages of v segments and M = 8 microbatches; shorter ends idle less."""
    graph, seconds = chain(48), {f"op{index}": 1.0 for index in range(48)}
    order = compute_order("interleaved" if chunks > 1 else "1f1b", stages=4, microbatches=8, chunks=chunks)
    boundaries = partition(graph, seconds, stages=4, chunks=chunks, order=order)
    times = [sum(seconds[op.id] for op in part) for part in graph.parts(boundaries)]
    lengths = {step: times[step.segment] * (1 if step.kind is Kind.FORWARD else 2) for row in order for step in row}
    pairs = [(number, number + 1) for number in range(4 * chunks - 1)]
    begun = start_times(order, forward=pairs, backward=pairs, lengths=lengths)
    taken_s = max(begin_s + lengths[step] for step, begin_s in begun.items())
    busy_s = 3 * 8 * 48 / 4
    assert 0.8 * idle <= 1 - busy_s / taken_s <= idle * (1 + 1e-9)


def test_where_equal_stages_end_later_the_quicker_split_is_taken() -> None:
    """A loss of 12 s behind 24 operations of 1 s: what the order says decides, not the sums of stages alone."""
    work = [1.0] * 24 + [12.0]
    graph, seconds = chain(len(work), tuple(range(23))), {f"op{index}": time_s for index, time_s in enumerate(work)}
    order = compute_order("interleaved", stages=4, microbatches=8, chunks=2)

    def taken_s(boundaries: tuple[str, ...]) -> float:
        times = [sum(seconds[op.id] for op in part) for part in graph.parts(boundaries)]
        lengths = {step: times[step.segment] * (1 if step.kind is Kind.FORWARD else 2) for row in order for step in row}
        pairs = [(number, number + 1) for number in range(7)]
        begun = start_times(order, forward=pairs, backward=pairs, lengths=lengths)
        return max(begin_s + lengths[step] for step, begin_s in begun.items())

    by_sums = partition(graph, seconds, stages=4, chunks=2)
    by_order = partition(graph, seconds, stages=4, chunks=2, order=order)
    assert taken_s(by_order) < taken_s(by_sums)
