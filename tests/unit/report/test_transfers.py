"""When bytes were under way, from what ranks recorded."""

import pytest
from tests.unit.report.runs import FORWARDS, PROGRAM, RECV_B, RECV_F, SEND_B, SEND_F, measured, predicted, span
from tests.unit.simulator.building import all_reduce, program, receive, send

from trimaran.base.timeline import WAIT, Span, Timeline
from trimaran.program.types import Instruction, Program
from trimaran.report.breakdown import UnderWay, under_way

FORWARD_ONLY = Program(ranks=((SEND_F,), (RECV_F,)), segments=2, microbatches=1)


def found(lists: Program, timeline: Timeline, instruction: Instruction, step: int = 0) -> UnderWay:
    (only,) = (
        interval
        for item, interval in zip(timeline, under_way(lists, timeline), strict=True)
        if item.instruction == instruction.id and item.step == step and item.stream != WAIT
    )
    return only


def message(spans: list[Span]) -> UnderWay:
    timeline = Timeline(spans)
    assert found(FORWARD_ONLY, timeline, SEND_F) == found(FORWARD_ONLY, timeline, RECV_F)
    return found(FORWARD_ONLY, timeline, RECV_F)


def test_a_message_flows_from_the_later_post_until_the_receiver_that_stands_still_has_it() -> None:
    """Posted at 3 and 0; the receiver waits from 0 and has it at 4; the sender looks at 9.75."""
    timeline = measured()
    assert found(PROGRAM, timeline, RECV_F) == (3.0, 4.0, True)
    assert found(PROGRAM, timeline, SEND_F) == (3.0, 4.0, True)


def test_steps_are_matched_apart() -> None:
    """The same message in step 2, which starts at 20."""
    timeline = measured()
    assert found(PROGRAM, timeline, SEND_B, step=2) == (26.5, 27.5, True)
    assert found(PROGRAM, timeline, RECV_B, step=2) == (26.5, 27.5, True)


def test_a_simulated_timeline_is_unchanged() -> None:
    timeline = predicted()
    assert under_way(PROGRAM, timeline) == [(item.start_s, item.end_s, True) for item in timeline]


def test_a_receiver_that_looks_late_takes_the_end_of_a_sender_that_stands_still() -> None:
    """The sender waits from 1 to 2. The receiver looks at 8 and needs no time: the message flowed from 1 to 2."""
    spans = [
        span(SEND_F, 1.0, 2.0),
        span(SEND_F, 1.0, 2.0, stream=WAIT),
        span(RECV_F, 0.0, 8.0),
        span(RECV_F, 8.0, 8.0, stream=WAIT),
    ]
    assert message(spans) == (1.0, 2.0, True)


def test_when_both_look_late_the_end_is_not_known() -> None:
    """The sender looks at 6 and the receiver at 8: it ended at 6 or before."""
    spans = [
        span(SEND_F, 1.0, 6.0),
        span(SEND_F, 6.0, 6.0, stream=WAIT),
        span(RECV_F, 0.0, 8.0),
        span(RECV_F, 8.0, 8.0, stream=WAIT),
    ]
    assert message(spans) == (1.0, 6.0, False)


@pytest.mark.parametrize(("waits_from_s", "known"), [(3.0, True), (3.1, False)])
def test_an_end_is_known_to_who_stood_still_for_half_of_the_time(waits_from_s: float, known: bool) -> None:
    """Under way from 1 to 5; the receiver waits from the middle, or from a little later."""
    spans = [
        span(SEND_F, 1.0, 9.0),
        span(SEND_F, 9.0, 9.0, stream=WAIT),
        span(RECV_F, 0.0, 5.0),
        span(RECV_F, waits_from_s, 5.0, stream=WAIT),
    ]
    assert message(spans) == (1.0, 5.0, known)


def test_an_end_before_the_end_of_the_wait_was_seen_without_it() -> None:
    """As on a GPU, where an event marks the end: the wait, from 4.9 to 6, did not decide it."""
    spans = [span(SEND_F, 1.0, 5.0), span(RECV_F, 0.0, 5.0), span(RECV_F, 4.9, 6.0, stream=WAIT)]
    assert message(spans) == (1.0, 5.0, True)


def test_a_send_that_was_buffered_does_not_end_a_message() -> None:
    """The send ended at 2, before the receive was posted at 3: the message flows from 3 to 4."""
    spans = [span(SEND_F, 1.0, 2.0), span(RECV_F, 3.0, 4.0), span(RECV_F, 3.0, 4.0, stream=WAIT)]
    assert message(spans) == (3.0, 4.0, True)


def test_messages_of_one_channel_do_not_overlap() -> None:
    """Both are posted at 0; the first ends at 2, so the second is under way from 2 to 5."""
    lists = program((send(0, 1, 0), send(0, 1, 1)), (receive(1, 0, 0), receive(1, 0, 1)))
    timeline = Timeline(
        [
            span(send(0, 1, 0), 0.0, 2.0),
            span(send(0, 1, 1), 0.0, 5.0),
            span(receive(1, 0, 0), 0.0, 2.0),
            span(receive(1, 0, 1), 0.0, 5.0),
        ]
    )
    assert found(lists, timeline, receive(1, 0, 1)) == (2.0, 5.0, True)


def test_a_collective_flows_from_its_last_member_and_ends_on_each_by_itself() -> None:
    """Members post at 0 and 3 and end at 5 and 5.5."""
    members = [all_reduce(rank, (0, 1)) for rank in (0, 1)]
    timeline = Timeline([span(members[0], 0.0, 5.0), span(members[1], 3.0, 5.5)])
    lists = program((members[0],), (members[1],))
    assert found(lists, timeline, members[0]) == (3.0, 5.0, True)
    assert found(lists, timeline, members[1]) == (3.0, 5.5, True)


@pytest.mark.parametrize(("looks_at_s", "known"), [(5.0, False), (3.0, True)])
def test_what_is_posted_behind_a_transfer_of_unknown_end_is_not_measured(looks_at_s: float, known: bool) -> None:
    """Posted at 0 and 4, and waited for last; in three of four steps of gloo, nobody knows when the first one ended.

    All-reduces of two ranks were "0.0 s" long for it, and their prediction "44 % too long".
    """
    members = [all_reduce(0, (0,), label) for label in ("loss", "b0")]
    timeline = Timeline(
        [
            span(members[0], 0.0, looks_at_s),
            span(members[1], 4.0, 5.0),
            Span(instruction=members[1].id, rank=0, stream=WAIT, start_s=4.0, end_s=5.0, step=0),
            Span(instruction=members[0].id, rank=0, stream=WAIT, start_s=looks_at_s - 0.1, end_s=looks_at_s, step=0),
        ]
    )
    lists = program(tuple(members))
    assert not found(lists, timeline, members[0]).known
    assert found(lists, timeline, members[1]).known is known


@pytest.mark.parametrize(
    ("at_once", "expected"), [(1, [(0.0, 5.0), (1.0, 1.0), (1.0, 2.0)]), (2, [(0.0, 5.0), (0.0, 1.0), (1.0, 2.0)])]
)
def test_of_two_collectives_at_once_the_third_starts_when_either_has_ended(
    at_once: int, expected: list[tuple[float, float]]
) -> None:
    """All are posted at 0; the first ends at 5, the second at 1, the third at 2."""
    members = [all_reduce(0, (0,), label) for label in ("b0", "b1", "b2")]
    timeline = Timeline([span(item, 0.0, end_s) for item, end_s in zip(members, (5.0, 1.0, 2.0), strict=True)])
    lists = program(tuple(members))
    settled = zip(timeline, under_way(lists, timeline, at_once=at_once), strict=True)
    by_name = {item.instruction: entry[:2] for item, entry in settled}
    assert [by_name[item.id] for item in members] == expected


def test_compute_is_as_it_was() -> None:
    timeline = Timeline([span(FORWARDS[0], 1.0, 2.0)])
    lists = Program(ranks=((FORWARDS[0],), ()), segments=1, microbatches=1)
    assert under_way(lists, timeline) == [(1.0, 2.0, True)]
