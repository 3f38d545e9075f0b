"""Which layers a stage holds, and which passes it has in flight."""

import pytest
from tests import builders

from trimaran.pricing.analytical.shapes import gpt_shape, passes_in_flight, stage_chunks

SHAPE = gpt_shape(layers=12, hidden=64, heads=4)


def test_stages_hold_consecutive_layers() -> None:
    degrees = builders.degrees(pipeline=4)
    assert [stage_chunks(SHAPE, degrees, stage) for stage in (0, 3)] == [(range(3),), (range(9, 12),)]


def test_interleaved_stages_hold_every_fourth_part() -> None:
    assert stage_chunks(SHAPE, builders.degrees(pipeline=4, chunks=3), 3) == (range(3, 4), range(7, 8), range(11, 12))


def test_parts_may_be_uneven() -> None:
    degrees = builders.degrees(pipeline=4, parts=(2, 4, 4, 2))
    assert [len(stage_chunks(SHAPE, degrees, stage)[0]) for stage in range(4)] == [2, 4, 4, 2]


def test_layers_that_do_not_divide_go_to_the_first_stages() -> None:
    shape = gpt_shape(layers=10, hidden=64, heads=4)
    assert [len(stage_chunks(shape, builders.degrees(pipeline=4), stage)[0]) for stage in range(4)] == [3, 3, 2, 2]


@pytest.mark.parametrize(("stage", "count"), [(0, 4), (1, 3), (3, 1)])
def test_one_forward_one_backward_holds_as_many_microbatches_as_stages_follow(stage: int, count: int) -> None:
    assert len(passes_in_flight(builders.degrees(pipeline=4, microbatches=8), stage)) == count


def test_no_more_is_in_flight_than_there_are_microbatches() -> None:
    assert len(passes_in_flight(builders.degrees(pipeline=8, microbatches=2), 0)) == 2


def test_groups_of_more_microbatches_hold_more_passes() -> None:
    """2 · 0 + (3 - 1) · 5 + 1."""
    degrees = builders.degrees(pipeline=4, chunks=3, microbatches=10, group=5)
    assert passes_in_flight(degrees, 3) == (0,) * 5 + (1,) * 5 + (2,)


def test_replicas_of_experts_are_what_is_left_of_the_stage() -> None:
    """64 ranks of 2 stages: 32 a stage, of which 8 hold different experts and 1 shares each: 4 replicas."""
    degrees = builders.degrees(tensor=2, pipeline=2, data=16, expert=8, expert_tensor=1)
    assert (degrees.devices, degrees.expert_data) == (64, 4)
