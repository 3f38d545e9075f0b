"""A prediction beside a measurement, on the hand-made run of `runs`."""

import pytest
from tests.raising import raises
from tests.unit.report.runs import FORWARDS, PROGRAM, RECV_F, SEND_B, STEP_S, measured, measured_step, predicted, span
from tests.unit.simulator.building import all_reduce, costs, program, transfer

from trimaran.base.timeline import WAIT, Timeline
from trimaran.program.types import Kind, Program
from trimaran.report.breakdown import PARTS
from trimaran.report.comparison import Figure, compare
from trimaran.simulator.engine import simulate


def test_the_error_is_predicted_over_measured_less_one() -> None:
    """9 / 10 - 1 = -0.1."""
    assert Figure(predicted_s=9.0, measured_s=10.0).error == pytest.approx(-0.1)


@pytest.mark.parametrize("measured_s", [0.0, None])
def test_there_is_no_error_where_nothing_was_measured(measured_s: float | None) -> None:
    assert Figure(predicted_s=9.0, measured_s=measured_s).error is None


def test_collectives_of_which_two_are_under_way_at_once_are_compared_as_they_were() -> None:
    """Of 5, 1 and 1 s. Taken as one at a time, the second would have no time of its own."""
    reductions = [all_reduce(0, (0,), label) for label in ("b0", "b1", "b2")]
    lists = program(tuple(reductions))
    priced = costs(dict(zip(reductions, map(transfer, (5.0, 1.0, 1.0)), strict=True)), at_once=2)
    expected = simulate(lists, priced)
    posted = Timeline([span(item, 0.0, end_s) for item, end_s in zip(reductions, (5.0, 1.0, 2.0), strict=True)])
    figures = compare(lists, expected, posted, warmup=0, at_once=2).instructions
    assert [figures[item.id] for item in reductions] == [
        Figure(predicted_s=seconds, measured_s=seconds) for seconds in (5.0, 1.0, 1.0)
    ]


def test_parts_of_a_rank_stand_beside_each_other() -> None:
    """Rank 0 as drawn in `runs`: update 1 s and 0.5 s, backward 1.5 s and 1.5 s."""
    rank = compare(PROGRAM, predicted(), measured(), warmup=0).ranks[0]
    assert rank.figure("update") == Figure(predicted_s=1.0, measured_s=pytest.approx(0.5))
    assert rank.figure("backward") == Figure(predicted_s=1.5, measured_s=pytest.approx(1.5))


def test_parts_of_every_rank_sum_to_the_step() -> None:
    for rank in compare(PROGRAM, predicted(), measured(7)).ranks:
        figures = [rank.figure(name) for name in PARTS]
        assert sum(figure.predicted_s for figure in figures) == pytest.approx(rank.step.predicted_s)
        assert sum(figure.measured_s for figure in figures) == pytest.approx(rank.step.measured_s)


def test_the_step_is_the_mean_over_ranks() -> None:
    """Predicted 9 s on both; measured 10 s in step 1 on both, and 9.75 s in step 2, which is the last: 9.875."""
    comparison = compare(PROGRAM, predicted(), measured(3), warmup=1)
    assert comparison.step == Figure(predicted_s=9.0, measured_s=pytest.approx(9.875))
    assert (comparison.steps, comparison.warmup) == (2, 1)


def test_warm_up_is_left_out() -> None:
    """The first of four steps takes 30 s; the others 10, 10 and 9.75: the middle half of three is all of them."""
    slow = measured_step(0, factor=3.0)
    rest = [item for step in (1, 2, 3) for item in measured_step(step, start_s=30.0 + STEP_S * (step - 1))]
    comparison = compare(PROGRAM, predicted(), Timeline([*slow, *rest]), warmup=1)
    assert comparison.step.measured_s == pytest.approx(29.75 / 3)
    assert comparison.instructions[FORWARDS[0].id].measured_s == pytest.approx(2.0)


def test_disturbed_steps_do_not_move_the_ranks() -> None:
    """Of eight steps one takes ten times as long; the shortest two and the longest two are left out, 10 s remain."""
    spans, start_s = [], 0.0
    for step in range(8):
        factor = 10.0 if step == 3 else 1.0
        spans += measured_step(step, start_s=start_s, factor=factor)
        start_s += STEP_S * factor
    comparison = compare(PROGRAM, predicted(), Timeline(spans), warmup=0)
    assert comparison.step.measured_s == pytest.approx(10.0)


def test_an_instruction_has_its_median_over_steps() -> None:
    """F0 takes 2 s, 6 s and 2 s in three steps: the median is 2 s, the prediction 2 s."""
    spans = measured_step(0) + measured_step(1, start_s=10.0, factor=3.0) + measured_step(2, start_s=40.0)
    comparison = compare(PROGRAM, predicted(), Timeline(spans), warmup=0)
    assert comparison.instructions[FORWARDS[0].id] == Figure(predicted_s=2.0, measured_s=pytest.approx(2.0))


def test_a_kind_has_the_median_over_its_instructions() -> None:
    """Forwards take 2 s and 1 s, predicted and measured: 1.5. Receives forward took 1 s, predicted 0.5."""
    kinds = {kind.kind: kind for kind in compare(PROGRAM, predicted(), measured()).kinds}
    assert times(kinds[Kind.FORWARD]) == (1.5, pytest.approx(1.5))
    assert kinds[Kind.FORWARD].count == kinds[Kind.FORWARD].observed == 2
    assert times(kinds[Kind.RECEIVE_FORWARD]) == (0.5, pytest.approx(1.0))


def test_kinds_are_those_of_the_program_in_their_order() -> None:
    kinds = [kind.kind for kind in compare(PROGRAM, predicted(), measured()).kinds]
    assert kinds == [kind for kind in Kind if any(instruction.kind is kind for instruction in PROGRAM)]


def test_a_transfer_whose_end_nobody_saw_has_no_measured_duration() -> None:
    """The receiver of the forward message looks at 3.9 instead of waiting from 0, and the sender at 9.7."""
    spans = [
        span(RECV_F, 3.9, 4.0, stream=WAIT) if (item.instruction, item.stream) == (RECV_F.id, WAIT) else item
        for item in measured_step()
    ]
    comparison = compare(PROGRAM, predicted(), Timeline(spans), warmup=0)
    kinds = {kind.kind: kind for kind in comparison.kinds}
    assert comparison.instructions[RECV_F.id] == Figure(predicted_s=0.5, measured_s=None)
    assert times(kinds[Kind.RECEIVE_FORWARD]) == (0.5, None)
    assert kinds[Kind.RECEIVE_FORWARD].observed == 0
    assert comparison.instructions[SEND_B.id].measured_s == pytest.approx(1.0)


def test_too_few_steps_are_refused() -> None:
    with raises("report.only-warmup", steps=1, warmup=1):
        compare(PROGRAM, predicted(), measured(1))


def test_an_instruction_that_was_not_recorded_has_no_measured_duration() -> None:
    timeline = Timeline(item for item in measured() if item.instruction != FORWARDS[0].id)
    assert compare(PROGRAM, predicted(), timeline).instructions[FORWARDS[0].id].measured_s is None


def test_an_instruction_that_was_not_predicted_is_named() -> None:
    timeline = Timeline(item for item in predicted() if item.instruction != FORWARDS[0].id)
    with raises("report.span-missing", instruction="r0/0F0"):
        compare(PROGRAM, timeline, measured())


def test_a_rank_that_was_not_measured_is_named() -> None:
    with raises("report.rank-missing", rank=1):
        compare(PROGRAM, predicted(), measured().select(rank=0))


def test_a_timeline_of_another_program_is_refused() -> None:
    other = Program(ranks=(PROGRAM.ranks[0][:2], ()), segments=2, microbatches=1)
    with raises("report.unknown-instruction"):
        compare(other, predicted(), measured())


def times(figure: Figure) -> tuple[float, float | None]:
    return figure.predicted_s, figure.measured_s
