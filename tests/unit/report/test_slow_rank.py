"""Which rank computes slower than the others, on timelines by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.timeline import COMPUTE, WAIT, Span, Timeline
from trimaran.report.slow_rank import ALIKE, PREDICTED, find_slow_ranks

STEPS = 208


def timeline(compute_s: list[list[float]], *, tokens: list[str] | None = None, wait_s: float = 0.0) -> Timeline:
    """For each rank and step a span of compute, of which `wait_s` is a wait inside it."""
    spans = []
    for rank, of_rank in enumerate(compute_s):
        at = 0.0
        token = "0F0" if tokens is None else tokens[rank]
        for step, seconds in enumerate(of_rank):
            end = at + seconds + wait_s
            spans.append(
                Span(rank=rank, stream=COMPUTE, start_s=at, end_s=end, instruction=f"r{rank}/{token}", step=step)
            )
            if wait_s:
                spans.append(
                    Span(
                        rank=rank, stream=WAIT, start_s=at, end_s=at + wait_s, instruction=f"r{rank}/0AR#b0", step=step
                    )
                )
            at = end + 1.0
    return Timeline(spans)


def test_a_rank_that_is_twice_as_slow_is_named_with_what_that_costs() -> None:
    """10 ms against 20 ms: twice, 10 ms more."""
    (found,) = find_slow_ranks(timeline([[0.01] * STEPS, [0.02] * STEPS, [0.01] * STEPS]), Timeline([]))
    assert (found.rank, found.compared_with, found.steps) == (1, (0, 2), STEPS)
    assert found.ratio == pytest.approx(2.0)
    assert found.lost_s == pytest.approx(0.01)
    assert str(found).startswith("rank 1 is slow: its computation takes 2.00 times that of ranks 0, 2")


def test_waits_inside_compute_do_not_count() -> None:
    """A rank that waits a second in each step for the other computes no slower."""
    waiting, other = timeline([[0.01] * STEPS], wait_s=1.0), timeline([[], [0.01] * STEPS])
    assert find_slow_ranks(Timeline([*waiting, *other]), Timeline([])) == ()


def test_one_pause_does_not_make_a_rank_slow_however_long() -> None:
    paused = [0.01] * STEPS
    paused[20] = 100.0
    assert find_slow_ranks(timeline([[0.01] * STEPS, paused]), Timeline([])) == ()


def test_pauses_in_every_tenth_step_do() -> None:
    """Ten steps of 10 ms with a pause of 200 ms: three times as long."""
    steps = 8 * 30
    paused = [0.01 + (0.2 if step % 10 == 0 else 0.0) for step in range(steps)]
    (found,) = find_slow_ranks(timeline([paused, [0.01] * steps]), Timeline([]))
    assert found.rank == 0


def test_stages_are_compared_by_their_predictions() -> None:
    """The second stage has twice the work and takes twice as long; then much longer."""
    tokens = ["0F0", "1F0"]
    predicted = timeline([[0.01], [0.02]], tokens=tokens)
    alike = timeline([[0.015] * STEPS, [0.03] * STEPS], tokens=tokens)
    assert find_slow_ranks(alike, predicted) == ()
    slow = timeline([[0.015] * STEPS, [0.015 * 2 * PREDICTED * 1.1] * STEPS], tokens=tokens)
    (found,) = find_slow_ranks(slow, predicted)
    assert (found.rank, found.compared_with) == (1, ())


def test_too_few_steps_and_ranks_that_are_alone_are_not_judged() -> None:
    assert find_slow_ranks(timeline([[0.01] * 199, [0.03] * 199]), Timeline([])) == ()
    assert find_slow_ranks(timeline([[0.01] * STEPS]), Timeline([])) == ()


@given(seed=st.integers(0, 10**6), ranks=st.integers(2, 4))
def test_steps_that_vary_by_a_third_make_no_rank_slow(seed: int, ranks: int) -> None:
    draw = random.Random(seed)
    assert ALIKE > (1 + 1 / 6) / (1 - 1 / 6)
    steps = [[0.01 * draw.uniform(1 - 1 / 6, 1 + 1 / 6) for _ in range(STEPS)] for _ in range(ranks)]
    assert find_slow_ranks(timeline(steps), Timeline([])) == ()
