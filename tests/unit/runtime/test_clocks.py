"""Clocks of several machines."""

from trimaran.runtime.record import Offset, compare_clocks, to_clock_of_rank_0


def test_an_offset_that_stays_is_subtracted() -> None:
    before = Offset(at_ns=1_000, offset_ns=50, uncertainty_ns=0)
    after = Offset(at_ns=2_000, offset_ns=50, uncertainty_ns=0)
    assert to_clock_of_rank_0([1_000, 1_500, 2_000], before, after) == [950, 1_450, 1_950]


def test_a_clock_that_runs_fast_is_corrected_in_proportion() -> None:
    """It gains 100 ns in 1,000: half of that by the middle."""
    before = Offset(at_ns=0, offset_ns=0, uncertainty_ns=0)
    after = Offset(at_ns=1_000, offset_ns=100, uncertainty_ns=0)
    assert to_clock_of_rank_0([0, 500, 1_000], before, after) == [0, 450, 900]


def test_a_process_that_is_alone_has_no_offset() -> None:
    assert compare_clocks(None).offset_ns == 0
