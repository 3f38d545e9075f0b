"""Batches of unequal work: the mean of the largest of some draws, and what a group waits for it."""

import math
import random
import statistics

import pytest

from trimaran.simulator.data_parallel import largest_of, length_wait


@pytest.mark.parametrize(
    ("count", "closed"),
    [
        (1, 0.0),
        (2, 1 / math.sqrt(math.pi)),
        (3, 1.5 / math.sqrt(math.pi)),
        (4, 6 / math.pi**1.5 * math.atan(math.sqrt(2))),
        # Harter 1961, table 1.
        (8, 1.42360),
        (16, 1.76599),
        (100, 2.50759),
    ],
)
def test_it_meets_closed_forms_and_the_published_table(count: int, closed: float) -> None:
    """Closed forms exist up to 5 draws; the table has five decimals."""
    assert largest_of(count) == pytest.approx(closed, abs=1e-5)


def test_draws_say_the_same() -> None:
    """20,000 groups of 8: the mean's own deviation is 0.0044, four of them are allowed."""
    source = random.Random(5)
    seen = statistics.fmean(max(source.gauss() for _ in range(8)) for _ in range(20_000))
    assert seen == pytest.approx(largest_of(8), abs=0.018)


def test_it_grows_with_the_group_up_to_thousands_of_devices() -> None:
    """Below the bound of the root of twice the logarithm."""
    found = [largest_of(2**power) for power in range(1, 17)]
    assert found == sorted(found)
    assert all(value < math.sqrt(2 * math.log(2**power)) for power, value in enumerate(found, start=1))


def test_microbatches_even_out() -> None:
    assert length_wait(0.2, 8) == pytest.approx(0.2 * 1.42360, rel=1e-5)
    assert length_wait(0.2, 8, microbatches=16) == pytest.approx(length_wait(0.2, 8) / 4)
    assert length_wait(0.2, 1) == length_wait(0.0, 8) == 0.0
