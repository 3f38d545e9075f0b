"""The spread of fresh runs as an interval of the ratio of two of them."""

import math

import pytest
from scipy.stats import t
from tests.raising import raises

from trimaran.pricing.noise import Noise, noise_between, noise_for, student_95


def _noise(step_time_s: list[float], *, ranks: int = 2) -> Noise:
    return noise_between(step_time_s, ranks=ranks, date="2026-11-20", source="by hand")


def test_the_interval_of_three_runs_as_worked_by_hand() -> None:
    """Logarithms -0.02, 0, 0.02 scatter by 0.02; t is 2.920 with 2 degrees: 2.920 * 1.4142 * 0.02 = 0.08259."""
    noise = _noise([math.exp(-0.02), 1.0, math.exp(0.02)])
    assert noise.high == pytest.approx(math.exp(0.08259) - 1, rel=1e-4)
    assert noise.low == pytest.approx(math.exp(-0.08259) - 1, rel=1e-4)


def test_two_runs_tell_little() -> None:
    """Logarithms 0 and 0.02 scatter by 0.01414; t is 6.314 with one degree: 6.314 * 1.4142 * 0.01414 = 0.1263."""
    assert _noise([1.0, math.exp(0.02)]).high == pytest.approx(math.exp(0.1263) - 1, rel=1e-3)


def test_runs_that_are_equal_have_no_noise() -> None:
    noise = _noise([0.1, 0.1, 0.1])
    assert (noise.low, noise.high) == (0.0, 0.0)


def test_the_unit_of_the_step_does_not_matter() -> None:
    small, large = _noise([0.001, 0.0011, 0.00105]), _noise([1.0, 1.1, 1.05])
    assert small.high == pytest.approx(large.high)


@pytest.mark.parametrize("runs", [[], [0.1], [0.1, 0.0]])
def test_what_shows_no_noise_is_refused(runs: list[float]) -> None:
    with raises("noise.too-few-runs", match=r"\b0\b"):
        _noise(runs)


@pytest.mark.parametrize("degrees", [1, 2, 4, 9, 10, 11, 12, 20, 50, 1000])
def test_the_points_of_students_distribution(degrees: int) -> None:
    """To 0.1 %, the table and beyond it."""
    assert student_95(degrees) == pytest.approx(t.ppf(0.95, degrees), rel=1e-3)


def test_the_interval_holds_nine_pairs_of_ten() -> None:
    """20,000 times five runs and two more of one distribution: the ratio of the two lies within in 90 ± 1 %."""
    import numpy

    draws = numpy.random.default_rng(0).normal(0.0, 0.03, size=(20_000, 7))
    within = 0
    for row in draws:
        within += abs(row[5] - row[6]) < math.log1p(_noise([math.exp(value) for value in row[:5]]).high)
    assert within / len(draws) == pytest.approx(0.9, abs=0.01)


def test_the_noise_of_as_many_ranks_counts_then_that_of_more_then_the_largest() -> None:
    one, four = _noise([1.0, 1.1], ranks=1), _noise([1.0, 1.2], ranks=4)
    assert [noise_for([one, four], ranks=ranks) for ranks in (1, 2, 4, 8)] == [one, four, four, four]
    assert noise_for([], ranks=1) is None
