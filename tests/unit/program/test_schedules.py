import pytest
from tests.graphs import microbatches_of
from tests.raising import raises

from trimaran.program.lowering.schedules import (
    Compute,
    compute_order,
    draw_order,
    gpipe,
    interleaved,
    one_forward_one_backward,
    start_times,
    zero_bubble,
)
from trimaran.program.types import Kind


def tokens(row: tuple[Compute, ...]) -> list[str]:
    return [step.token for step in row]


def test_gpipe_runs_every_forward_before_any_backward() -> None:
    assert tokens(gpipe(2, 3)[1]) == ["1F0", "1F1", "1F2", "1B0", "1B1", "1B2"]


def test_1f1b_runs_as_many_forwards_ahead_as_there_are_stages_after() -> None:
    """Stage 0 of 3 has two stages after it: two forwards ahead, then one forward and one backward in turn."""
    assert tokens(one_forward_one_backward(3, 4)[0]) == ["0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"]


def test_1f1b_with_fewer_microbatches_than_stages_is_complete() -> None:
    order = one_forward_one_backward(4, 2)
    assert microbatches_of(order) == 2
    assert tokens(order[0]) == ["0F0", "0F1", "0B0", "0B1"]
    assert tokens(order[3]) == ["3F0", "3B0", "3F1", "3B1"]


def test_1f1b_keeps_activations_of_at_most_as_many_microbatches_as_stages_are_left() -> None:
    """Stage k of 4 keeps 4 - k: forwards minus backwards, counted along its row, never exceed that."""
    for stage, row in enumerate(one_forward_one_backward(4, 8)):
        kept = [sum(1 if step.kind is Kind.FORWARD else -1 for step in row[: end + 1]) for end in range(len(row))]
        assert max(kept) == 4 - stage


def test_a_zero_bubble_stage_puts_off_as_many_gradients_of_weights_as_there_are_stages_before() -> None:
    """Stage 1 of 2 runs the input half of microbatch 1 before the weight half of microbatch 0."""
    assert tokens(zero_bubble(2, 2)[1]) == ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1"]
    assert tokens(zero_bubble(2, 2)[0]) == ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]


def test_an_interleaved_stage_runs_a_group_of_microbatches_through_each_of_its_segments() -> None:
    """Stage 0 of 2 with segments 0 and 2: both microbatches through each; one and a half ahead of its backwards."""
    assert tokens(interleaved(2, 2, 2)[0]) == ["0F0", "0F1", "2F0", "2F1", "2B0", "2B1", "0B0", "0B1"]


def test_interleaving_one_segment_a_stage_is_1f1b_with_more_forwards_ahead() -> None:
    assert tokens(interleaved(2, 4, 1)[1]) == tokens(one_forward_one_backward(2, 4)[1])


def test_one_stage_runs_forward_and_backward_of_one_microbatch_after_the_other() -> None:
    assert tokens(compute_order("gpipe", stages=1, microbatches=2)[0]) == ["0F0", "0B0", "0F1", "0B1"]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_with_one_stage_every_schedule_is_accumulation(schedule: str) -> None:
    assert compute_order(schedule, stages=1, microbatches=3) == one_forward_one_backward(1, 3)  # type: ignore[arg-type]


def test_an_order_that_waits_for_itself_is_drawn_up_to_where_it_stops() -> None:
    """Row 0 wants the backward of microbatch 0 before it gives microbatch 1, and row 1 wants both first."""
    forward, backward = Kind.FORWARD, Kind.BACKWARD
    eager = tuple(Compute(kind, 0, microbatch) for microbatch in range(2) for kind in (forward, backward))
    late = tuple(Compute(kind, 1, microbatch) for kind in (forward, backward) for microbatch in range(2))
    with raises("order.stuck", match="row 0.*0B0.*1B0") as caught:
        start_times((eager, late), forward=[(0, 1)], backward=[(0, 1)])
    assert "row 0  0F0  .\nrow 1   .  1F0" in str(caught.value)


def test_gradients_that_do_not_flow_are_not_waited_for() -> None:
    """Two stages of one microbatch each; without a gradient, stage 0 starts its backward right after its forward."""
    assert start_times(gpipe(2, 1), forward=[(0, 1)], backward=[])[Compute(Kind.BACKWARD, 0, 0)] == 1


def test_a_wavefront_has_one_column_a_unit() -> None:
    assert draw_order(gpipe(2, 1)) == "row 0  0F0  .   .  0B0\nrow 1   .  1F0 1B0  ."
