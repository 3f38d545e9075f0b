import pytest
from tests.raising import raises

from trimaran.base.errors import ExecutionError
from trimaran.measure.findings import pool, summarize


def test_the_cost_is_the_median_of_all_samples_and_the_interval_that_of_the_rounds() -> None:
    """Samples 1 2 3 4 5 6 9: median 4. Medians of the rounds: 2, 5 and 9."""
    cost = summarize([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [9.0]], how="by hand")
    assert (cost.seconds, cost.low, cost.high, cost.source) == (4.0, 2.0, 9.0, "measured: by hand")


def test_of_many_rounds_the_outermost_are_left_out() -> None:
    """Rounds 0 to 39: 5 % of 40 are two on either side."""
    cost = summarize([[float(number)] for number in range(40)], how="")
    assert (cost.low, cost.high) == (2.0, 37.0)


def test_the_median_lies_in_the_interval_even_where_rounds_are_lopsided() -> None:
    """One long round of tens, one short round of ones: the median of all is 10, that of the rounds 1 and 10."""
    cost = summarize([[10.0] * 9, [1.0]], how="")
    assert cost.low <= cost.seconds <= cost.high
    assert cost.seconds == 10.0


def test_what_waits_counts_by_its_mean_without_the_longest_samples() -> None:
    """Ten of 1 and nine of 3 have the mean 37 / 19; the one of 100 among twenty is left out."""
    samples = [1.0] * 10 + [3.0] * 9
    assert summarize([[*samples, 100.0]], how="", waits=True).seconds == pytest.approx(37 / 19)
    assert summarize([[*samples, 100.0]], how="").seconds == 2.0


@pytest.mark.parametrize("others", [[1.0, 3.0], [1.0, 2.0, 3.0]])
def test_one_long_wait_among_few_samples_does_not_count(others: list[float]) -> None:
    """Of four loads of a slow step one took 79 ms, where the others took 0.5: the mean was forty times too long."""
    cost = summarize([*([sample] for sample in others), [100.0]], how="", waits=True)
    assert cost.seconds == 2.0
    assert cost.high == 100.0


def test_empty_rounds_are_passed_over_and_no_sample_at_all_is_an_error() -> None:
    assert summarize([[], [1.0]], how="").seconds == 1.0
    with raises("measure.no-samples", ExecutionError):
        summarize([[], []], how="conv")


def test_pooling_keeps_rounds_apart() -> None:
    assert pool([{"a": [[1.0, 2.0]]}, {"a": [[3.0]]}, {}]) == {"a": [[1.0, 2.0], [3.0]]}
