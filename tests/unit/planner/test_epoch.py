"""What an epoch is made of, and what it takes; worked by hand with the costs of `tests/builders.py`."""

import dataclasses

import pytest
from tests import builders
from tests.builders import network, table_for

from trimaran.planner.candidates import evaluate
from trimaran.planner.epoch import EpochData, extra_parts
from trimaran.program.strategy import Strategy

GRAPH = network(4)
TABLE = table_for(GRAPH)


def parts(strategy: Strategy, data: EpochData, batch: int) -> list[tuple[int, int, int, bool]]:
    return [
        (part.count, part.batch, part.strategy.microbatches, part.training)
        for part in extra_parts(strategy, data, batch=batch)
    ]


def test_a_small_last_batch_is_priced_by_its_largest_shares() -> None:
    """101 = 3 · 32 + 5: the replicas get 3 and 2 samples, so both are priced with 3."""
    assert parts(builders.strategy(dp=2), EpochData(samples=101), 32) == [(1, 6, 1, True)]


def test_a_small_last_batch_has_no_more_microbatches_than_samples() -> None:
    """5 samples on 2 replicas fill 2 of 4 microbatches, of 2 samples and 1."""
    assert parts(builders.strategy(dp=2, microbatches=4), EpochData(samples=101), 32) == [(1, 8, 2, True)]


def test_a_last_batch_is_left_out_if_the_job_says_so() -> None:
    """Of one sample both of two replicas run one."""
    assert parts(builders.strategy(dp=2), EpochData(samples=97), 32) == [(1, 2, 1, True)]
    assert parts(builders.strategy(dp=2), EpochData(samples=101, drop_last=True), 32) == []
    assert EpochData(samples=97).steps(batch=32) == 4


def test_an_evaluation_keeps_its_last_batch() -> None:
    assert parts(builders.strategy(), EpochData(samples=32, evaluation_samples=70), 32) == [
        (2, 32, 1, False),
        (1, 6, 1, False),
    ]


def test_an_epoch_on_one_device_is_the_sum_of_its_parts() -> None:
    """Forward 11 ms a sample, backward twice that, load 1/8 ms; evaluation as forward; update 1.992 ms.

    20 samples in batches of 8 are 8 + 8 + 4: a step of 8 takes 1 + 88 + 176 + 1.992 = 266.992 ms, the last one
    0.5 + 44 + 88 + 1.992 = 134.492 ms. Evaluating 12 takes 1 + 88 and 0.5 + 44 ms. Together 801.976 ms.
    """
    data = EpochData(samples=20, evaluation_samples=12)
    candidate = evaluate(builders.strategy(), builders.problem(graph=GRAPH, table=TABLE, epoch=data))
    assert candidate.epoch_s == pytest.approx(2 * 0.266992 + 0.134492 + 0.089 + 0.0445)
    assert candidate.objective_s == candidate.epoch_s
    assert candidate.step_time_s == pytest.approx(0.266992)


def test_the_interval_of_an_epoch_is_that_of_all_its_parts() -> None:
    """Every operation 10 % shorter or longer; the update is half as long, or twice."""
    table = table_for(GRAPH, part=0.1)
    candidate = evaluate(builders.strategy(), builders.problem(graph=GRAPH, table=table, epoch=EpochData(samples=16)))
    low, high = candidate.interval_s
    assert candidate.epoch_interval_s == pytest.approx((2 * low, 2 * high))
    without = dataclasses.replace(candidate, epoch_s=None)
    assert without.cases == (low, candidate.step_time_s, high)
