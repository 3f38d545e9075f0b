"""Waits of a step, made by hand: what is the exchange, and what is another rank that comes late."""

import pytest

from trimaran.base.timeline import COMMUNICATION, COMPUTE, WAIT, Span
from trimaran.measure.stalls.steps import Exchanges, Waited
from trimaran.program.types import Instruction, Kind, Program


def program() -> Program:
    """Two replicas with two buckets."""
    return Program(
        ranks=tuple(
            (
                Instruction(kind=Kind.FORWARD, rank=rank, segment=0, microbatch=0),
                Instruction(kind=Kind.BACKWARD, rank=rank, segment=0, microbatch=0),
                *(
                    Instruction(kind=Kind.ALL_REDUCE, rank=rank, stream=COMMUNICATION, group=(0, 1), label=label)
                    for label in ("b0", "b1", "loss")
                ),
                Instruction(kind=Kind.UPDATE, rank=rank),
            )
            for rank in (0, 1)
        ),
        segments=1,
        microbatches=1,
    )


def span(rank: int, stream: str, token: str, start_s: float, end_s: float) -> Span:
    return Span(rank=rank, stream=stream, start_s=start_s, end_s=end_s, instruction=f"r{rank}/{token}")


def waits(rank: int, start_s: float, **seconds: float) -> list[Span]:
    """Waits for buckets, one after the other."""
    found = []
    for label, length_s in seconds.items():
        found.append(span(rank, WAIT, f"AR#{label}", start_s, start_s + length_s))
        start_s += length_s
    return found


def test_the_shortest_wait_is_the_exchange_and_the_rest_is_for_the_slower_rank() -> None:
    """The drawing in the module: rank 0 waits 5 + 2, rank 1 1 + 2. By buckets, rank 0 would have 4 more for b0."""
    step = [
        span(0, COMPUTE, "0B0", 0.0, 4.0),
        *waits(0, 4.0, b0=5.0, b1=2.0),
        span(1, COMPUTE, "0B0", 0.0, 8.0),
        *waits(1, 8.0, b0=1.0, b1=2.0),
    ]
    assert Exchanges(program()).divide(step) == {
        0: Waited(communication=3.0, synchronization=4.0),
        1: Waited(communication=3.0, synchronization=0.0),
    }


def test_waits_without_compute_between_them_are_one() -> None:
    """Rank 0 hears of b0 a second earlier and of b1 a second later: both wait 6 in all, and nobody for anybody."""
    step = [
        span(0, COMPUTE, "0B0", 0.0, 4.0),
        *waits(0, 4.0, b0=2.0, b1=4.0),
        span(1, COMPUTE, "0B0", 0.0, 4.0),
        *waits(1, 4.0, b0=3.0, b1=3.0),
    ]
    found = Exchanges(program()).divide(step)
    assert {rank: (one.communication, one.synchronization) for rank, one in found.items()} == {
        0: (6.0, 0.0),
        1: (6.0, 0.0),
    }


def test_waits_with_compute_between_them_are_apart() -> None:
    """Rank 1 is late at first, rank 0 later: each waits 3 for the other, and 1 + 1 for the exchanges."""
    step = [
        *waits(0, 0.0, loss=4.0),
        span(0, COMPUTE, "0B0", 4.0, 8.0),
        *waits(0, 8.0, b0=1.0),
        *waits(1, 3.0, loss=1.0),
        span(1, COMPUTE, "0B0", 4.0, 5.0),
        *waits(1, 5.0, b0=4.0),
    ]
    found = Exchanges(program()).divide(step)
    assert {rank: (one.communication, one.synchronization) for rank, one in found.items()} == {
        0: (2.0, 3.0),
        1: (2.0, 3.0),
    }


def test_a_rank_that_does_not_wait_is_the_one_that_others_wait_for() -> None:
    found = Exchanges(program()).divide([*waits(0, 0.0, b0=2.0), span(1, COMPUTE, "0B0", 0.0, 2.0)])
    assert found == {0: Waited(communication=0.0, synchronization=2.0)}


@pytest.mark.parametrize(
    ("posted_s", "expected"),
    [
        # Posted when the receiver has waited for 3 of its 5 seconds: 2 on the wire.
        (3.0, (2.0, 3.0)),
        # Posted before it began to wait: all of it is the wire.
        (-1.0, (5.0, 0.0)),
    ],
)
def test_a_message_waits_for_its_sender_and_then_for_the_wire(posted_s: float, expected: tuple[float, float]) -> None:
    sends = Instruction(kind=Kind.SEND_FORWARD, rank=0, segment=0, microbatch=0, peer=1, peer_segment=1)
    receives = Instruction(kind=Kind.RECEIVE_FORWARD, rank=1, segment=1, microbatch=0, peer=0, peer_segment=0)
    both = Program(ranks=((sends,), (receives,)), segments=2, microbatches=1)
    step = [
        span(0, COMMUNICATION, sends.token, posted_s, 5.0),
        span(0, WAIT, sends.token, posted_s, posted_s + 0.25),
        span(1, COMMUNICATION, receives.token, -2.0, 5.0),
        span(1, WAIT, receives.token, 0.0, 5.0),
    ]
    found = Exchanges(both).divide(step)
    assert (found[1].communication, found[1].synchronization) == expected
    # Handing over is the sender's own.
    assert (found[0].communication, found[0].synchronization) == (0.25, 0.0)
