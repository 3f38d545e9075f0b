"""Waits of a step, made by hand: what is the exchange, and what is another rank that comes late."""

from trimaran.base.timeline import COMMUNICATION, COMPUTE, WAIT, Span, Timeline
from trimaran.measure.stalls.steps import TimedStep, split_steps
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


def divided(*spans: Span) -> list[tuple[float, float]]:
    """Communication and synchronization of both ranks in a step of 20 s."""
    steps = [[TimedStep(number=0, way="cached", block=0, asked_s=0.0, step_s=20.0)]] * 2
    return [(own[0].communication, own[0].synchronization) for own in split_steps(program(), [Timeline(spans)], steps)]


def test_the_shortest_wait_is_the_exchange_and_the_rest_is_for_the_slower_rank() -> None:
    """The drawing in the module: rank 0 waits 5 + 2, rank 1 1 + 2."""
    assert divided(
        span(0, COMPUTE, "0B0", 0.0, 4.0),
        *waits(0, 4.0, b0=5.0, b1=2.0),
        span(1, COMPUTE, "0B0", 0.0, 8.0),
        *waits(1, 8.0, b0=1.0, b1=2.0),
    ) == [(3.0, 4.0), (3.0, 0.0)]


def test_what_ranks_wait_at_one_place_more_and_at_another_less_is_no_wait_for_a_rank() -> None:
    """Rank 0 hears of b0 a second earlier and of b1 a second later: both wait 6 in all, and nobody for anybody."""
    assert divided(
        span(0, COMPUTE, "0B0", 0.0, 4.0),
        *waits(0, 4.0, b0=2.0, b1=4.0),
        span(1, COMPUTE, "0B0", 0.0, 4.0),
        *waits(1, 4.0, b0=3.0, b1=3.0),
    ) == [(6.0, 0.0), (6.0, 0.0)]


def test_a_rank_that_does_not_wait_is_the_one_that_others_wait_for() -> None:
    assert divided(*waits(0, 0.0, b0=2.0), span(1, COMPUTE, "0B0", 0.0, 2.0)) == [(0.0, 2.0), (0.0, 0.0)]
