"""When things start: lanes, messages, collectives, and what a blocked host can issue."""

import pytest
from tests.unit.simulator.building import (
    all_reduce,
    backward,
    costs,
    forward,
    load,
    program,
    receive,
    send,
    span_of,
    transfer,
)

from trimaran.simulator.engine import simulate


def test_compute_of_one_rank_runs_one_after_the_other() -> None:
    """1 s + 2 s: the second runs from 1 to 3."""
    first, second = forward(0, 0), forward(0, 1)
    timeline = simulate(program((first, second)), costs({first: 1.0, second: 2.0}))
    assert span_of(timeline, first) == (0.0, 1.0)
    assert span_of(timeline, second) == (1.0, 3.0)


def test_a_message_starts_when_the_sender_has_computed_it() -> None:
    """The receiver is there at 0, the sender at 2; the message takes 3 s, so both ends have 2 to 5."""
    work, out, arrival = forward(0), send(0, 1, after=("0F0",)), receive(1, 0)
    timeline = simulate(program((work, out), (arrival,)), costs({work: 2.0, out: transfer(3.0)}))
    assert span_of(timeline, out) == span_of(timeline, arrival) == (2.0, 5.0)


def test_a_message_is_handed_over_before_the_rank_computes_on() -> None:
    """Work until 2, handing over until 3, then the message (3 to 6) beside the next work (3 to 8)."""
    work, out, more = forward(0), send(0, 1, after=("0F0",)), forward(0, 1)
    arrival = receive(1, 0)
    timeline = simulate(
        program((work, out, more), (arrival,)),
        costs({work: 2.0, out: transfer(3.0), more: 5.0}, handling={out.id: 1.0}),
    )
    assert span_of(timeline, out) == (3.0, 6.0)
    assert span_of(timeline, more) == (3.0, 8.0)


def test_where_the_host_runs_ahead_handing_over_takes_no_time() -> None:
    work, out, more = forward(0), send(0, 1, after=("0F0",)), forward(0, 1)
    timeline = simulate(
        program((work, out, more), (receive(1, 0),)),
        costs({work: 2.0, out: transfer(3.0), more: 5.0}, handling={out.id: 1.0}, host_blocks=False),
    )
    assert span_of(timeline, more) == (2.0, 7.0)


def test_a_message_waits_for_its_receiver() -> None:
    """The sender is ready at 2, but the receiver is busy until 7 and posts its receive after that: 7 to 10."""
    work, out = forward(0), send(0, 1, after=("0F0",))
    busy, arrival = forward(1, 5), receive(1, 0, after=("1F5",))
    timeline = simulate(program((work, out), (busy, arrival)), costs({work: 2.0, busy: 7.0, out: transfer(3.0)}))
    assert span_of(timeline, out) == span_of(timeline, arrival) == (7.0, 10.0)


def test_a_receiver_computes_after_the_message() -> None:
    """Sender 2 s, message 1 s of latency and 3 s of flow, receiver 4 s: 2 + 1 + 3 + 4 = 10."""
    work, out = forward(0), send(0, 1, after=("0F0",))
    arrival, use = receive(1, 0), forward(1, after=("1RECV_F0<0",))
    timeline = simulate(
        program((work, out), (arrival, use)), costs({work: 2.0, out: transfer(3.0, latency_s=1.0), use: 4.0})
    )
    assert span_of(timeline, use) == (6.0, 10.0)


def test_messages_of_one_channel_go_one_at_a_time_in_order() -> None:
    """Both are ready at 0; the second starts when the first has ended, at 2, although no link is shared."""
    first, second = send(0, 1, 0), send(0, 1, 1)
    timeline = simulate(
        program((first, second), (receive(1, 0, 0), receive(1, 0, 1))),
        costs({first: transfer(2.0, "a"), second: transfer(1.0, "b")}),
    )
    assert span_of(timeline, first) == (0.0, 2.0)
    assert span_of(timeline, second) == (2.0, 3.0)


def test_messages_of_different_channels_go_side_by_side() -> None:
    """Different links, so neither slows the other: 0 to 2 and 0 to 1."""
    first, second = send(0, 1), send(0, 2)
    timeline = simulate(
        program((first, second), (receive(1, 0),), (receive(2, 0),)),
        costs({first: transfer(2.0, "a"), second: transfer(1.0, "b")}),
    )
    assert span_of(timeline, first) == (0.0, 2.0)
    assert span_of(timeline, second) == (0.0, 1.0)


def test_a_collective_starts_when_its_last_member_is_ready() -> None:
    """Members are ready at 1, 4 and 2, so it runs from 4 to 6 on all three."""
    work = [forward(rank) for rank in range(3)]
    sums = [all_reduce(rank, (0, 1, 2), after=(f"{rank}F0",)) for rank in range(3)]
    timeline = simulate(
        program(*zip(work, sums, strict=True)),
        costs({work[0]: 1.0, work[1]: 4.0, work[2]: 2.0, sums[0]: transfer(2.0)}),
    )
    assert [span_of(timeline, member) for member in sums] == [(4.0, 6.0)] * 3


def test_collectives_of_one_group_go_one_at_a_time_and_of_others_beside_them() -> None:
    """b0 and b1 of ranks 0 and 1 follow each other, 0 to 2 to 4; b2 of ranks 0 and 2 runs from 0 to 2 beside b0."""
    first = [all_reduce(rank, (0, 1), "b0") for rank in (0, 1)]
    second = [all_reduce(rank, (0, 1), "b1") for rank in (0, 1)]
    other = [all_reduce(rank, (0, 2), "b2") for rank in (0, 2)]
    timeline = simulate(
        program((first[0], second[0], other[0]), (first[1], second[1]), (other[1],)),
        costs({first[0]: transfer(2.0), second[0]: transfer(2.0), other[0]: transfer(2.0)}),
    )
    assert span_of(timeline, first[0]) == (0.0, 2.0)
    assert span_of(timeline, second[1]) == (2.0, 4.0)
    assert span_of(timeline, other[0]) == (0.0, 2.0)


def test_a_blocked_host_issues_a_send_after_the_compute_listed_before_it() -> None:
    """The list is F0 (1 s), F1 (1 s), send of F0: the host comes to the send when F1 has ended, at 2."""
    work, more, out = forward(0, 0), forward(0, 1), send(0, 1, after=("0F0",))
    timeline = simulate(
        program((work, more, out), (receive(1, 0),)),
        costs({work: 1.0, more: 1.0, out: transfer(1.0)}, host_blocks=True),
    )
    assert span_of(timeline, out) == (2.0, 3.0)


def test_a_host_that_runs_ahead_issues_a_send_at_once() -> None:
    """As above, but the host does not wait for F1: the send follows F0, at 1."""
    work, more, out = forward(0, 0), forward(0, 1), send(0, 1, after=("0F0",))
    timeline = simulate(
        program((work, more, out), (receive(1, 0),)),
        costs({work: 1.0, more: 1.0, out: transfer(1.0)}, host_blocks=False),
    )
    assert span_of(timeline, out) == (1.0, 2.0)


def test_a_blocked_host_posts_a_receive_between_computations() -> None:
    """The receive is listed after F5 (3 s), so a message that could start at 0 starts at 3."""
    busy, arrival, out = forward(1, 5), receive(1, 0), send(0, 1)
    timeline = simulate(program((out,), (busy, arrival)), costs({busy: 3.0, out: transfer(1.0)}, host_blocks=True))
    assert span_of(timeline, arrival) == (3.0, 4.0)


@pytest.mark.parametrize(("host_blocks", "end_s"), [(True, 3.0), (False, 2.0)])
def test_loading_and_compute_share_a_blocked_host(host_blocks: bool, end_s: float) -> None:
    """A load of 1 s and a forward of 2 s that does not need it: one thread takes 3 s, host and device together 2 s."""
    data, work = load(0), forward(0)
    assert simulate(program((data, work)), costs({data: 1.0, work: 2.0}, host_blocks=host_blocks)).makespan_s == end_s


def test_what_waits_for_a_mark_is_issued_by_the_mark() -> None:
    """The mark lies at 1/4 of a backward of 4 s; the all-reduce is listed after it and yet starts at 1."""
    work = [backward(rank) for rank in (0, 1)]
    sums = [all_reduce(rank, (0, 1), after=(f"{rank}B0!b0",)) for rank in (0, 1)]
    timeline = simulate(
        program(*zip(work, sums, strict=True)),
        costs(
            {work[0]: 4.0, work[1]: 4.0, sums[0]: transfer(1.0)},
            marks={("r0/0B0", "b0"): 0.25, ("r1/1B0", "b0"): 0.25},
            host_blocks=True,
        ),
    )
    assert span_of(timeline, sums[0]) == (1.0, 2.0)


def test_several_marks_are_passed_in_the_order_of_their_places() -> None:
    """Marks at 3/4, 0 and 1 of 4 s, waited for by three collectives over different groups: 3, 0 and 4."""
    work = backward(0)
    groups = [all_reduce(0, (0, rank), f"b{rank}", after=(f"0B0!b{rank}",)) for rank in (1, 2, 3)]
    others = [all_reduce(rank, (0, rank), f"b{rank}") for rank in (1, 2, 3)]
    timeline = simulate(
        program((work, *groups), *((other,) for other in others)),
        costs(
            {work: 4.0} | {group: transfer(0.5) for group in groups},
            marks={("r0/0B0", "b1"): 0.75, ("r0/0B0", "b2"): 0.0, ("r0/0B0", "b3"): 1.0},
        ),
    )
    assert [span_of(timeline, group)[0] for group in groups] == [3.0, 0.0, 4.0]


def test_instructions_that_take_no_time_keep_their_order() -> None:
    """0 s, a message of 0 s, 0 s, then 1 s: everything before the last happens at 0."""
    work, out = forward(0), send(0, 1, after=("0F0",))
    arrival, use, last = receive(1, 0), forward(1, after=("1RECV_F0<0",)), forward(1, 1)
    timeline = simulate(
        program((work, out), (arrival, use, last)), costs({work: 0.0, out: transfer(0.0), use: 0.0, last: 1.0})
    )
    assert span_of(timeline, use) == (0.0, 0.0)
    assert span_of(timeline, last) == (0.0, 1.0)


def test_marks_of_an_instruction_that_takes_no_time_are_passed() -> None:
    """The backward takes 0 s, so the collective behind its mark starts at 0."""
    work, total = backward(0), all_reduce(0, (0,), after=("0B0!b0",))
    timeline = simulate(program((work, total)), costs({work: 0.0, total: transfer(1.0)}, marks={("r0/0B0", "b0"): 0.5}))
    assert span_of(timeline, total) == (0.0, 1.0)


def test_an_empty_program_takes_no_time() -> None:
    assert simulate(program((), ()), costs({})).makespan_s == 0.0
