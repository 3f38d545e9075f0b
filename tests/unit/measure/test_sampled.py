"""From durations of microbatches to what samples take."""

import pytest

from trimaran.measure.findings import Sampled, fit_line, sample_costs
from trimaran.pricing.tables import SampleCosts


def _found(**more: object) -> Sampled:
    """Microbatches of 1 and 9 samples: 2 ms beside 1 ms a sample; 5 ms standing still."""
    return Sampled(
        reads=[[5e-3], [5e-3]],
        again=[[1e-3]],
        makes=[(1, 3e-3), (9, 11e-3)],
        recalls=[(1, 2.1e-3), (9, 2.9e-3)],
        sample_bytes=100,
        stored_bytes=90,
        samples=50,
        repeats=True,
        **more,  # type: ignore[arg-type]  # some fields
    )


def test_what_grows_with_the_samples_is_told_from_what_does_not() -> None:
    costs = sample_costs([_found()], how="example")
    assert costs.prepare.seconds == pytest.approx(1e-3)
    assert costs.batch.seconds == pytest.approx(2e-3)
    assert costs.recall.seconds == pytest.approx(0.1e-3)
    assert (costs.read.seconds, costs.read_again.seconds) == (5e-3, 1e-3)


def test_ranks_are_taken_together_and_the_worst_of_them_decides_what_can_be_kept() -> None:
    slower = _found()
    slower.reads = [[7e-3], [7e-3]]
    slower.repeats, slower.stored_bytes = False, 0
    costs = sample_costs([_found(), slower], how="example")
    assert costs.read.seconds == pytest.approx(6e-3)
    assert (costs.read.low, costs.read.high) == (5e-3, 7e-3)
    assert (costs.repeats, costs.stored_bytes) == (False, 0)


def test_a_worker_that_was_not_measured_is_assumed_and_said_to_be() -> None:
    assert not sample_costs([_found()], how="example").knows_workers
    known: SampleCosts = sample_costs([_found(takes=[(100, 2e-4), (900, 6e-4)], starts=[0.1])], how="example")
    assert known.knows_workers
    assert known.take.seconds == pytest.approx(1.5e-4)
    assert known.take_per_byte == pytest.approx(5e-7)
    assert known.start_s == 0.1


def test_neither_the_fixed_part_nor_the_rate_is_negative() -> None:
    """Shorter with more, by noise: all of it is fixed. Longer in more than proportion: all of it is the rate."""
    assert fit_line([(1, 3.0), (10, 2.0)], how="x")[1] == 0.0
    fixed, each = fit_line([(1, 0.1), (10, 10.0)], how="x")
    assert fixed.seconds == 0.0
    assert each == pytest.approx(1.0)
