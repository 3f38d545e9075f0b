import pytest
from tests.raising import raises

from trimaran.features.memory_fit.largest_batch import most_samples, most_with_plan


class Peaks:
    """Peak of a step that has a fixed part and a part per sample, and what was asked."""

    def __init__(self, fixed: int, each: int) -> None:
        self.fixed, self.each = fixed, each
        self.asked: list[int] = []

    def __call__(self, samples: int) -> int:
        self.asked.append(samples)
        return self.fixed + self.each * samples


def test_a_straight_line_is_followed_to_its_end() -> None:
    """(10^9 − 10^6) / 1000 = 999 000 samples, found with a handful of traces."""
    peaks = Peaks(10**6, 1000)
    assert most_samples(peaks, 10**9, near=64) == 999_000
    assert len(peaks.asked) <= 6


@pytest.mark.parametrize("budget", [1107, 1113, 1114, 1700])
def test_one_sample_more_would_not_fit(budget: int) -> None:
    peaks = Peaks(1100, 7)
    found = most_samples(peaks, budget, near=5)
    assert peaks(found) <= budget < peaks(found + 1)


def test_not_even_one_sample_fits_beside_large_weights() -> None:
    assert most_samples(Peaks(1000, 7), 1006, near=64) == 0


def test_a_curve_with_a_bend_is_searched_to_its_end() -> None:
    """A fixed part rules below 300 samples, a part per sample above: 5000 / 10 = 500."""
    assert most_samples(lambda samples: max(3000, 10 * samples), 5000, near=2) == 500


def test_what_does_not_grow_has_no_limit_but_that_of_the_search() -> None:
    assert most_samples(lambda _: 10, 11, near=4, most=1000) == 1000


def test_the_largest_batch_under_a_slowdown_is_found_by_halving() -> None:
    """A plan costs 1 % for each sample above 10, and may cost 5 %: 15 samples, of 100 that are possible."""
    asked = []

    def slowdown(samples: int) -> float | None:
        asked.append(samples)
        return (samples - 10) / 100 if samples <= 40 else None

    assert most_with_plan(slowdown, at_most=0.05, fits=10, possible=100) == (15, 0.05)
    assert len(asked) <= 8


def test_large_batches_are_found_to_within_two_percent() -> None:
    """5000 samples cost what they may."""
    asked = []

    def slowdown(samples: int) -> float:
        asked.append(samples)
        return samples / 50_000

    found, cost = most_with_plan(slowdown, at_most=0.1, fits=1000, possible=20_000)
    assert 4900 <= found <= 5000
    assert cost == found / 50_000
    assert len(asked) <= 9


def test_where_no_plan_is_cheap_enough_the_batch_without_help_remains() -> None:
    assert most_with_plan(lambda _: 1.0, at_most=0.1, fits=10, possible=100) == (10, 0.0)


def test_a_floor_below_what_fits_is_refused() -> None:
    with raises("batches.fewer-than-without-plan", match=r"\b10\b"):
        most_with_plan(lambda _: 0.0, at_most=0.1, fits=10, possible=9)
