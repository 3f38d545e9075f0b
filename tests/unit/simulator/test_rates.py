"""How fast things run: shared links, and compute and communication side by side."""

import pytest
from tests import builders
from tests.raising import raises
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

from trimaran.base.timeline import COPY
from trimaran.program.types import Instruction, Kind
from trimaran.simulator.engine import simulate


def test_two_transfers_halve_a_link() -> None:
    """2 s each and the same link: both end at 4."""
    out = [send(0, 2), send(1, 2)]
    timeline = simulate(
        program((out[0],), (out[1],), (receive(2, 0), receive(2, 1))),
        costs({out[0]: transfer(2.0, "wire"), out[1]: transfer(2.0, "wire")}),
    )
    assert [span_of(timeline, message) for message in out] == [(0.0, 4.0), (0.0, 4.0)]


def test_a_transfer_speeds_up_when_the_other_one_has_ended() -> None:
    """The first (4 s) is alone until 2 and has 2 s left. The second (1 s) takes 2 s at half speed, until 4.

    The first has done 1 s more by then and ends at 4 + 1 = 5.
    """
    work, late = forward(1), send(1, 2, after=("1F0",))
    early = send(0, 2)
    timeline = simulate(
        program((early,), (work, late), (receive(2, 0), receive(2, 1))),
        costs({early: transfer(4.0, "wire"), work: 2.0, late: transfer(1.0, "wire")}),
    )
    assert span_of(timeline, late) == (2.0, 4.0)
    assert span_of(timeline, early) == (0.0, 5.0)


def test_latency_is_not_shared() -> None:
    """1 s of latency, then 2 s at half speed: 1 + 4 = 5. Shared latency would make 6."""
    out = [send(0, 2), send(1, 2)]
    entry = transfer(2.0, "wire", latency_s=1.0)
    timeline = simulate(
        program((out[0],), (out[1],), (receive(2, 0), receive(2, 1))), costs({out[0]: entry, out[1]: entry})
    )
    assert span_of(timeline, out[0]) == (0.0, 5.0)


@pytest.mark.parametrize(("at_once", "ends"), [(1, [3.0, 6.0, 9.0]), (2, [5.0, 5.0, 8.0]), (3, [7.0, 7.0, 7.0])])
def test_collectives_of_a_group_run_as_many_at_once_as_there_are_workers(at_once: int, ends: list[float]) -> None:
    """Three of 1 s + 2 s on one wire. By twos: 1 s, then both at half speed until 5, then the third alone until 8."""
    ranks = tuple(tuple(all_reduce(rank, (0, 1), label) for label in ("b0", "b1", "b2")) for rank in (0, 1))
    entry = transfer(2.0, "wire", latency_s=1.0)
    timeline = simulate(program(*ranks), costs(dict.fromkeys(ranks[0], entry), at_once=at_once))
    assert [span_of(timeline, item)[1] for item in ranks[0]] == pytest.approx(ends)


def test_the_next_collective_takes_the_worker_that_is_free_first() -> None:
    """Of 5, 1, 1 and 1 s, two at once: the worker of the second does the third and the fourth beside the first."""
    ranks = tuple(tuple(all_reduce(rank, (0, 1), f"b{number}") for number in range(4)) for rank in (0, 1))
    entries = dict(zip(ranks[0], map(transfer, (5.0, 1.0, 1.0, 1.0)), strict=True))
    timeline = simulate(program(*ranks), costs(entries, at_once=2))
    assert [span_of(timeline, item) for item in ranks[1]] == [(0.0, 5.0), (0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]


def test_collectives_of_unequal_sizes_share_the_wire_by_twos() -> None:
    """4, 1 and 1 s. At half speed the second ends at 2, the third at 4; the first has 2 s left then and ends at 6."""
    ranks = tuple(tuple(all_reduce(rank, (0, 1), f"b{number}") for number in range(3)) for rank in (0, 1))
    entries = dict(zip(ranks[0], (transfer(seconds, "wire") for seconds in (4.0, 1.0, 1.0)), strict=True))
    timeline = simulate(program(*ranks), costs(entries, at_once=2))
    assert [span_of(timeline, item) for item in ranks[0]] == [(0.0, 6.0), (0.0, 2.0), (2.0, 4.0)]


def test_a_collective_that_has_a_worker_keeps_it_while_a_member_is_late() -> None:
    """The first waits for rank 1 until 3. The second (1 s) passes it; the third has to wait for its worker, until 1."""
    late = forward(1)
    first = tuple(all_reduce(0, (0, 1), f"b{number}") for number in range(3))
    second = (late, all_reduce(1, (0, 1), "b0", after=("1F0",)), *(all_reduce(1, (0, 1), f"b{n}") for n in (1, 2)))
    entries = {late: 3.0} | dict.fromkeys(first, transfer(1.0))
    timeline = simulate(program(first, second), costs(entries, at_once=2, host_blocks=False))
    assert [span_of(timeline, item) for item in first] == [(3.0, 4.0), (0.0, 1.0), (1.0, 2.0)]


def test_messages_of_a_channel_run_one_at_a_time_whatever_collectives_do() -> None:
    """Two of 1 s + 2 s from rank 0 to rank 1: 6 s."""
    entry = transfer(2.0, "wire", latency_s=1.0)
    sent = [send(0, 1, microbatch) for microbatch in (0, 1)]
    timeline = simulate(
        program(tuple(sent), tuple(receive(1, 0, microbatch) for microbatch in (0, 1))),
        costs(dict.fromkeys(sent, entry), at_once=2),
    )
    assert span_of(timeline, sent[1]) == (3.0, 6.0)


def test_a_transfer_in_its_latency_does_not_take_from_the_link() -> None:
    """The first flows from 0 to 2 alone, while the second waits out a latency of 2 s and then flows from 2 to 3."""
    out = [send(0, 2), send(1, 2)]
    timeline = simulate(
        program((out[0],), (out[1],), (receive(2, 0), receive(2, 1))),
        costs({out[0]: transfer(2.0, "wire"), out[1]: transfer(1.0, "wire", latency_s=2.0)}),
    )
    assert span_of(timeline, out[0]) == (0.0, 2.0)
    assert span_of(timeline, out[1]) == (0.0, 3.0)


def test_the_fullest_link_sets_the_rate() -> None:
    """The long one shares "a" with one and "b" with two others, so it runs at 1/3.

    It has 2 s of work. The two on "b" (1 s each) run at 1/3 until 3, the one on "a" (1 s) at 1/2 until 2. At 3 the long
    one has 1 s left and is alone: it ends at 4.
    """
    long = send(0, 1)
    on_a, on_b = send(2, 3), [send(4, 5), send(6, 7)]
    ranks = [(long,), (receive(1, 0),), (on_a,), (receive(3, 2),)]
    ranks += [(on_b[0],), (receive(5, 4),), (on_b[1],), (receive(7, 6),)]
    timeline = simulate(
        program(*ranks),
        costs(
            {
                long: transfer(2.0, "a", "b"),
                on_a: transfer(1.0, "a"),
                on_b[0]: transfer(1.0, "b"),
                on_b[1]: transfer(1.0, "b"),
            }
        ),
    )
    assert span_of(timeline, on_a)[1] == pytest.approx(2.0, rel=1e-12)
    assert span_of(timeline, on_b[0])[1] == pytest.approx(3.0, rel=1e-12)
    assert span_of(timeline, long)[1] == pytest.approx(4.0, rel=1e-12)


def test_compute_slows_while_bytes_flow() -> None:
    """Bytes flow from 0 to 2; compute of 3 s runs at 1/1.5 and has done 4/3 s by then: it ends at 2 + 5/3 = 11/3."""
    work, out = forward(0), send(0, 1, 9)
    timeline = simulate(
        program((out, work), (receive(1, 0, 9),)),
        costs({work: 3.0, out: transfer(2.0)}, interference=builders.interference(compute=1.5)),
    )
    assert span_of(timeline, out) == (0.0, 2.0)
    assert span_of(timeline, work) == (0.0, pytest.approx(11 / 3, rel=1e-12))


def test_compute_does_not_slow_during_latency() -> None:
    """Latency until 2, bytes from 2 to 4: compute of 3 s does 2 s, then 1 s at half speed, and ends at 4."""
    work, out = forward(0), send(0, 1, 9)
    timeline = simulate(
        program((out, work), (receive(1, 0, 9),)),
        costs({work: 3.0, out: transfer(2.0, latency_s=2.0)}, interference=builders.interference(compute=2.0)),
    )
    assert span_of(timeline, work) == (0.0, 4.0)


@pytest.mark.parametrize(("computes_s", "ends_s"), [(3.0, 6.0), (3.5, 6.0), (3.9, 6.0), (5.0, 6.0), (1.0, 4.0)])
def test_latency_waits_for_a_core_while_any_rank_computes(computes_s: float, ends_s: float) -> None:
    """A latency of 1 s beside compute waits for 3 s and takes its second then. Bytes flow for 2 s.

    Where rank 1 computes until 3 or longer, the wait is over at 3 and the latency at 4; until 1, it begins there.
    Without compute the message takes 3 s.
    """
    work, out = forward(1), send(0, 1, 9)
    entries = {work: computes_s, out: transfer(2.0, latency_s=1.0)}
    slowed = builders.interference(latency=4.0)
    timeline = simulate(program((out,), (receive(1, 0, 9), work)), costs(entries, interference=slowed))
    assert span_of(timeline, out) == (0.0, pytest.approx(ends_s, rel=1e-12))
    assert span_of(timeline, work) == (0.0, computes_s)
    alone = simulate(program((out,), (receive(1, 0, 9),)), costs({out: entries[out]}, interference=slowed))
    assert span_of(alone, out) == (0.0, 3.0)


def test_latency_without_bytes_is_slowed_too() -> None:
    """A message that is latency alone, 1 s, beside compute of 8 s: at a quarter of its rate it takes 4 s."""
    work, out = forward(0), send(0, 1, 9)
    timeline = simulate(
        program((out, work), (receive(1, 0, 9),)),
        costs({work: 8.0, out: transfer(0.0, latency_s=1.0)}, interference=builders.interference(latency=4.0)),
    )
    assert span_of(timeline, out) == (0.0, 4.0)


def test_two_transfers_slow_compute_as_much_as_one() -> None:
    """Two messages flow from 0 to 4 over different links: compute of 2 s takes 4 s."""
    work, out = forward(0), [send(0, 1, 9), send(0, 2, 9)]
    timeline = simulate(
        program((*out, work), (receive(1, 0, 9),), (receive(2, 0, 9),)),
        costs(
            {work: 2.0, out[0]: transfer(4.0, "a"), out[1]: transfer(4.0, "b")},
            interference=builders.interference(compute=2.0),
        ),
    )
    assert span_of(timeline, work) == (0.0, 4.0)


def test_a_transfer_slows_while_any_of_its_ranks_computes() -> None:
    """Rank 1 computes until 3: an all-reduce of 2 s does 1.5 s by then at half speed and ends at 3.5 on all."""
    sums = [all_reduce(rank, (0, 1, 2)) for rank in range(3)]
    work = forward(1)
    timeline = simulate(
        program((sums[0],), (sums[1], work), (sums[2],)),
        costs({sums[0]: transfer(2.0), work: 3.0}, interference=builders.interference(communication=2.0)),
    )
    assert [span_of(timeline, member) for member in sums] == [(0.0, 3.5)] * 3


def test_compute_on_both_ends_slows_a_message_once() -> None:
    """Both ranks compute for 4 s: a message of 1 s takes 2 s, not 4 s."""
    work, out = [forward(0), forward(1)], send(0, 1, 9)
    timeline = simulate(
        program((out, work[0]), (receive(1, 0, 9), work[1])),
        costs({work[0]: 4.0, work[1]: 4.0, out: transfer(1.0)}, interference=builders.interference(communication=2.0)),
    )
    assert span_of(timeline, out) == (0.0, 2.0)


def test_sharing_and_interference_multiply() -> None:
    """Two transfers on one link beside compute with a factor of 2: rate 1/4, so 1 s takes 4 s."""
    work, out = forward(0), [send(0, 1, 9), send(0, 2, 9)]
    timeline = simulate(
        program((*out, work), (receive(1, 0, 9),), (receive(2, 0, 9),)),
        costs(
            {work: 9.0, out[0]: transfer(1.0, "wire"), out[1]: transfer(1.0, "wire")},
            interference=builders.interference(communication=2.0),
        ),
    )
    assert [span_of(timeline, message) for message in out] == [(0.0, 4.0), (0.0, 4.0)]


def test_a_mark_is_a_fraction_of_the_work_and_not_of_the_time() -> None:
    """Backward of 2 s, mark at half of it; bytes flow until 1 and halve the speed of compute.

    At 1 it has done 0.5 s, it passes the mark (1 s) at 1.5 and ends at 2.5. Half of its time would be 1.25.
    """
    work, out = backward(0), send(0, 1, 9)
    sums = [all_reduce(0, (0, 2), after=("0B0!b0",)), all_reduce(2, (0, 2))]
    timeline = simulate(
        program((out, work, sums[0]), (receive(1, 0, 9),), (sums[1],)),
        costs(
            {work: 2.0, out: transfer(1.0), sums[0]: transfer(0.0)},
            marks={("r0/0B0", "b0"): 0.5},
            interference=builders.interference(compute=2.0),
        ),
    )
    assert span_of(timeline, sums[0])[0] == pytest.approx(1.5, rel=1e-12)
    assert span_of(timeline, work)[1] == pytest.approx(2.5, rel=1e-12)


def test_back_to_back_compute_is_one_load_on_a_transfer() -> None:
    """Four forwards of 1 s follow each other without a gap: a message of 2 s takes 4 s beside them."""
    work, out = [forward(0, number) for number in range(4)], send(0, 1, 9)
    timeline = simulate(
        program((out, *work), (receive(1, 0, 9),)),
        costs(dict.fromkeys(work, 1.0) | {out: transfer(2.0)}, interference=builders.interference(communication=2.0)),
    )
    assert span_of(timeline, out) == (0.0, 4.0)


def test_a_copy_flows_beside_compute_and_copies_go_one_at_a_time() -> None:
    """Two copies of 1 s after a forward of 1 s, beside a forward of 3 s that they slow by 2.

    They run from 1 to 2 and 2 to 3; the second forward does 1 s by 3 and 2 s more alone: it ends at 5.
    """
    first, second = forward(0, 0), forward(0, 1)
    copies = [
        Instruction(kind=Kind.OFFLOAD, rank=0, microbatch=0, label=label, stream=COPY, after=("0F0",)) for label in "ab"
    ]
    timeline = simulate(
        program((first, *copies, second)),
        costs(
            {first: 1.0, second: 3.0, copies[0]: transfer(1.0, "pcie"), copies[1]: transfer(1.0, "pcie")},
            interference=builders.interference(compute=2.0),
        ),
    )
    assert [span_of(timeline, copy) for copy in copies] == [(1.0, 2.0), (2.0, 3.0)]
    assert span_of(timeline, second) == (1.0, 5.0)


def test_a_factor_of_interference_is_positive() -> None:
    with raises("simulator.bad-interference"):
        simulate(program((forward(0),)), costs({forward(0): 1.0}, interference=builders.interference(compute=0.0)))


@pytest.mark.parametrize(("host_blocks", "end_s"), [(True, 4.0), (False, 2.0)])
def test_loading_counts_as_compute_only_on_a_blocked_host(host_blocks: bool, end_s: float) -> None:
    """Bytes flow from 0 to 4 and compute takes twice as long beside them: a load of 2 s takes 4 s on a CPU, 2 s on a
    host that does not compute.
    """
    data, out = load(0), send(0, 1, 9)
    timeline = simulate(
        program((out, data), (receive(1, 0, 9),)),
        costs(
            {data: 2.0, out: transfer(4.0)}, interference=builders.interference(compute=2.0), host_blocks=host_blocks
        ),
    )
    assert span_of(timeline, data) == (0.0, end_s)
