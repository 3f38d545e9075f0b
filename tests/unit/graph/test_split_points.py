"""Where a model may be cut."""

import pytest
from tests.unit.graph.chain import NETWORKS, captured
from tests.unit.graph.networks import InPlace, SharedNorm, make_job

from trimaran.graph.capture.capture import capture
from trimaran.graph.capture.operations import choose_splits


def test_no_cut_between_norm_and_relu_in_place() -> None:
    graph = captured("cnn")[1].graph
    norms = {op.id for op in graph.ops if op.target == "BatchNorm2d"}
    assert len(norms) == 6
    assert not norms & set(graph.split_points)


def test_no_cut_between_an_operation_and_a_later_write_through_a_view() -> None:
    """`row` is a view of `z = y * 2`, and is zeroed after `tanh`: from `mul` to `mul_` there is no cut."""
    graph = capture(make_job(InPlace)).graph
    ids = [op.id for op in graph.ops]
    inside = set(ids[ids.index("mul") : ids.index("mul_")])
    assert {"select", "tanh", "add"} <= inside
    assert not inside & set(graph.split_points)
    assert graph.split_points[-1] in ids[ids.index("mul_") :]


def test_no_cut_between_two_calls_of_a_layer_with_running_statistics() -> None:
    graph = capture(make_job(SharedNorm)).graph
    ids = [op.id for op in graph.ops]
    assert {"norm", "norm@1", "first@1"} <= set(ids)
    assert not set(ids[ids.index("norm") : ids.index("norm@1")]) & set(graph.split_points)
    assert "first" in graph.split_points


@pytest.mark.parametrize("name", NETWORKS)
def test_every_segment_has_an_operation_that_costs(name: str) -> None:
    graph = captured(name)[1].graph
    for part in graph.parts(graph.split_points):
        assert any(op.flops.at(1) or op.bytes_moved.at(1) for op in part if op.id != "loss")


def test_of_cuts_that_differ_by_views_the_smallest_is_kept() -> None:
    """Cuts after operations 0 and 1 differ by a free view; 4 bytes cross the second of them, 8 the first."""
    assert choose_splits([True] * 4, [True, False, True, True], [8.0, 4.0, 9.0, 9.0]) == [1, 2]


def test_no_cut_before_or_after_everything_that_costs() -> None:
    assert choose_splits([True] * 4, [False, True, True, False], [1.0] * 4) == [1]
