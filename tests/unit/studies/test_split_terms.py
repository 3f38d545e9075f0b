"""FP, BP and WU of steps whose spans are written by hand.

A program of two ranks with one all-reduce. A step lasts 10 s: load 1, forward 2, backward 3 (the all-reduce starts 1 s
before its end, lasts 3 s), a wait of 2 s, update 1, and 1 s in which nothing is recorded.
"""

import pytest
from tests import builders
from tests.graphs import chain
from tests.raising import raises

from trimaran.base.timeline import COMMUNICATION, COMPUTE, HOST, WAIT, Span, Timeline
from trimaran.program.lowering.lower import lower
from trimaran.program.types import Program
from trimaran_studies.reproduce.dgx1_real import middle_curves
from trimaran_studies.reproduce.step_split import Block, TimedStep, measured_terms, predicted_terms, recording_cost

STEP_S = 10.0
_SPANS = (
    ("IN0", HOST, 0.0, 1.0),
    ("0F0", COMPUTE, 1.0, 3.0),
    ("0B0", COMPUTE, 3.0, 6.0),
    ("0AR#b0", COMMUNICATION, 5.0, 8.0),
    ("0AR#b0", WAIT, 6.0, 8.0),
    ("U", COMPUTE, 8.0, 9.0),
)


def program() -> Program:
    return lower(chain(2), builders.strategy(dp=2), batch=4)


def steps(numbers: list[int], *, late_s: float = 0.0, stretched: int | None = None) -> Timeline:
    """Some steps; rank 1 is late by so much, and one step has a forward that is 4 s longer."""
    spans, start_s = [], 0.0
    for number in numbers:
        longer_s = 4.0 if number == stretched else 0.0
        for rank in range(2):
            for token, stream, low_s, high_s in _SPANS:
                shift_s = start_s + rank * late_s
                spans.append(
                    Span(
                        rank=rank,
                        stream=stream,
                        start_s=shift_s + low_s + (longer_s if low_s > 1.0 else 0.0),
                        end_s=shift_s + high_s + (longer_s if high_s > 1.0 else 0.0),
                        instruction=f"r{rank}/{token}",
                        step=number,
                    )
                )
        start_s += STEP_S + longer_s
    return Timeline(spans)


def block(*numbers: int, seconds: float = STEP_S) -> Block:
    return tuple(TimedStep(number=number, seconds=seconds) for number in numbers)


def test_the_parts_of_a_step_are_those_that_were_written_down() -> None:
    """Exposed 2 of the 3 s of the all-reduce, hidden 1; overhead is the load and the second without a record."""
    found = measured_terms(program(), steps([0, 1, 2]), [[block(1)], [block(1)]], watched={1})
    assert found.forward_s == pytest.approx(2.0)
    assert found.backward_s == pytest.approx(3.0)
    assert found.exposed_s == pytest.approx(2.0)
    assert found.overlapped_s == pytest.approx(1.0)
    assert found.update_s == pytest.approx(1.0)
    assert found.overhead_s == pytest.approx(2.0)
    assert found.wu_s == pytest.approx(5.0)
    assert found.missing == pytest.approx(0.0)


def test_a_rank_that_is_late_does_not_lengthen_the_sum() -> None:
    """The step before the first one that counts shows where each rank began."""
    found = measured_terms(program(), steps([0, 1, 2], late_s=0.5), [[block(1)], [block(1)]], watched=())
    assert found.missing == pytest.approx(0.0, abs=1e-9)


def test_the_clock_decides_whether_something_is_missing() -> None:
    """Parts of 10 s in a step that the clock says took 12.5: a fifth is missing."""
    late = block(1, seconds=12.5)
    assert measured_terms(program(), steps([0, 1, 2]), [[late], [late]], watched=()).missing == pytest.approx(-0.2)


def test_a_disturbed_step_is_left_out() -> None:
    """Of four steps the longest and the shortest: the one of 14 s counts for nothing."""
    taken = [*block(1), *block(2, seconds=14.0), *block(3, 4)]
    found = measured_terms(program(), steps([0, 1, 2, 3, 4, 5], stretched=2), [[tuple(taken)]] * 2, watched=())
    assert found.step_s == pytest.approx(STEP_S)
    assert found.forward_s == pytest.approx(2.0)


def test_blocks_with_other_steps_between_them_are_split_each_by_itself() -> None:
    """Steps 3 to 9 were not recorded; step 2 ends where step 12 would not say."""
    spans = [*steps([0, 1, 2])]
    spans += [
        Span(
            rank=span.rank,
            stream=span.stream,
            start_s=span.start_s + 100.0,
            end_s=span.end_s + 100.0,
            instruction=span.instruction,
            step=span.step,
        )
        for span in steps([10, 11, 12])
    ]
    found = measured_terms(program(), Timeline(spans), [[block(1), block(11)]] * 2, watched=())
    assert found.overhead_s == pytest.approx(2.0)


def test_without_steps_there_is_nothing_to_split() -> None:
    with raises("report.no-recorded-step"):
        measured_terms(program(), steps([0]), [[], []], watched=())


def test_a_prediction_is_split_alike() -> None:
    """The last second is waiting for nothing of its own: the step ends when the last rank ends, here after 9 s."""
    only = Timeline(span for span in steps([0]) if span.stream != WAIT)
    found = predicted_terms(program(), only)
    assert (found.step_s, found.exposed_s, found.overlapped_s) == pytest.approx((9.0, 2.0, 1.0))
    assert found.overhead_s == pytest.approx(1.0)


def test_recording_costs_what_undisturbed_steps_are_longer() -> None:
    """2 % in all steps, and two that were disturbed."""
    on = [*block(0, 1, seconds=1.02), *block(2, 3, seconds=9.0)]
    assert recording_cost([tuple(on)], [block(4, 5, 6, 7, seconds=1.0)]) == pytest.approx(0.02)


def test_steps_that_are_recorded_in_more_detail_count_as_often_as_they_come() -> None:
    """Every second step costs 4 % more, the others nothing: 2 % in the mean."""
    on = [*block(0, 2, 4, 6, seconds=1.04), *block(1, 3, 5, 7, seconds=1.0)]
    assert recording_cost([tuple(on)], [block(*range(8), seconds=1.0)], every=2) == pytest.approx(0.02)


def test_links_of_networks_are_their_middle_at_the_sizes_that_all_have() -> None:
    """A busy machine leaves out sizes that would take too long, with one network and not with the next."""
    key = builders.curve_key("AR")
    measured = [builders.curve(1.0, 1e9), builders.curve(3.0, 1e9)[:2], builders.curve(2.0, 1e9)]
    found = middle_curves([{key: curve} for curve in measured])
    assert found == {key: builders.curve(2.0, 1e9)[:2]}
