"""What a fed step takes, worked by hand.

A sample: 5 ms standing still, 1 ms of a core; a microbatch: 2 ms of a core beside its samples. Handing one over takes
the worker 1 ms and the training's thread 0.5 ms and 1 ns a byte; a sample has 1000 bytes. Out of a cache: 0.1 ms.
"""

import dataclasses

import pytest
from tests.builders import about, exact

from trimaran.pricing import input_pipeline as fed_step
from trimaran.pricing.tables import SampleCosts
from trimaran.program.strategy import IN_LINE, Feeding

SAMPLES = SampleCosts(
    read=exact(5e-3),
    read_again=exact(5e-3),
    prepare=exact(1e-3),
    batch=exact(2e-3),
    take=exact(0.5e-3),
    take_per_byte=1e-9,
    start_s=0.1,
    sample_bytes=1000,
    stored_bytes=1000,
    samples=100,
    repeats=True,
    give=exact(1e-3),
    recall=exact(0.1e-3),
)


def approximately(seconds: float) -> object:
    return pytest.approx(seconds, rel=1e-9)


def test_in_line_the_training_does_it_all() -> None:
    """8 samples: 40 ms standing still, 8 + 2 ms of a core."""
    assert fed_step.load(SAMPLES, IN_LINE, microbatch=8).seconds == approximately(50e-3)


def test_with_workers_it_takes_over_what_is_there() -> None:
    """0.5 ms and 8000 bytes at 1 ns."""
    assert fed_step.load(SAMPLES, Feeding(workers=3), microbatch=8).seconds == approximately(0.508e-3)


def test_a_cache_leaves_what_comes_out_of_memory() -> None:
    """8 times 0.1 ms, and 2 ms of collating."""
    assert fed_step.load(SAMPLES, Feeding(cached=True), microbatch=8).seconds == approximately(2.8e-3)


@pytest.mark.parametrize(("workers", "period_ms"), [(1, 102.0), (2, 51.0), (4, 25.5)])
def test_workers_take_turns(workers: int, period_ms: float) -> None:
    """A microbatch of 8 takes a worker 40 + 11 ms; a step has two."""
    found = fed_step.period(SAMPLES, Feeding(workers=workers), microbatch=8, microbatches=2, cores=64)
    assert found.seconds == approximately(period_ms * 1e-3)


def test_work_of_all_workers_and_ranks_goes_over_the_cores() -> None:
    """2 ranks, a microbatch of 8 each: 2 times 11 ms, and 30 ms of the training, on 2 cores."""
    found = fed_step.period(
        SAMPLES, Feeding(workers=32), microbatch=8, microbatches=1, readers=2, busy_s=30e-3, cores=2
    )
    assert found.seconds == approximately(26e-3)


def test_nothing_beside_the_training_has_no_period() -> None:
    assert fed_step.period(SAMPLES, IN_LINE, microbatch=8, microbatches=1, cores=2).seconds == 0.0
    assert fed_step.period(SAMPLES, Feeding(cached=True), microbatch=8, microbatches=1, cores=2).seconds == 0.0


def test_copies_ahead_run_beside_the_step_and_bound_it() -> None:
    """A microbatch of 8000 bytes at 1 µs a byte: 8 ms, beside 0.508 ms of taking it over."""
    slow = dataclasses.replace(SAMPLES, copy_per_byte=1e-6)
    in_turn, ahead = Feeding(workers=32), Feeding(workers=32, copies_ahead=1)
    assert fed_step.load(slow, in_turn, microbatch=8).seconds == approximately(8.508e-3)
    assert fed_step.load(slow, ahead, microbatch=8).seconds == approximately(0.508e-3)
    assert fed_step.period(slow, ahead, microbatch=8, microbatches=1, cores=64).seconds == approximately(8e-3)


def test_the_interval_reaches_down_to_second_reads() -> None:
    """First reads take 5 ms within a tenth, second ones 1 ms: 4 samples are at least 4 ms and at most 22."""
    samples = dataclasses.replace(SAMPLES, read=about(5e-3, 0.1), read_again=about(1e-3, 0.0))
    found = fed_step.waiting(samples, IN_LINE, microbatch=4)
    assert (found.low, found.seconds, found.high) == (approximately(4e-3), approximately(20e-3), approximately(22e-3))
