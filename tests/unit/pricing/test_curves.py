import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import about, exact
from tests.raising import raises

from trimaran.pricing.curves import at_batch, at_size, fixed_part, latency
from trimaran.pricing.types import Cost


def test_a_measured_size_is_given_back_as_it_is() -> None:
    point = about(3.0, 0.1)
    assert at_size(((10, exact(1.0)), (20, point)), 20) is point


def test_between_sizes_the_curve_is_straight_in_log_log() -> None:
    """From (1e3, 1) to (1e5, 100) the slope is 1 decade a decade: at 1e4 it is 10; ends of the interval likewise."""
    cost = at_size(((1_000, about(1.0, 0.5)), (100_000, about(100.0, 0.5))), 10_000)
    assert (cost.seconds, cost.low, cost.high) == pytest.approx((10.0, 5.0, 15.0))
    assert cost.source == "interpolated: by hand"


def test_below_the_smallest_size_nothing_gets_cheaper() -> None:
    assert at_size(((1_000, exact(1.0)), (2_000, exact(2.0))), 1).seconds == 1.0


def test_beyond_the_largest_size_bytes_go_on_at_the_last_rate() -> None:
    """The last 1000 B took 1 s more, so 3000 B more take 3 s more; the interval grows in proportion."""
    cost = at_size(((1_000, exact(4.0)), (2_000, about(5.0, 0.2))), 5_000)
    assert (cost.seconds, cost.low, cost.high) == pytest.approx((8.0, 6.4, 9.6))


def test_a_curve_that_falls_at_its_end_is_carried_on_in_proportion() -> None:
    """Noise made 2000 B cheaper than 1000 B; 4000 B then take twice as long as 2000 B."""
    assert at_size(((1_000, exact(4.0)), (2_000, exact(3.0))), 4_000).seconds == pytest.approx(6.0)


def test_what_does_not_grow_with_the_bytes_is_the_line_through_the_neighbours_at_no_bytes() -> None:
    """8 ms at 100 KB and 16 ms at 900 KB are 10 ns a byte on 7 ms; 16 bytes go another way, and take 2 ms."""
    points = ((16, exact(2e-3)), (100_000, exact(8e-3)), (900_000, exact(16e-3)))
    assert fixed_part(points, 500_000) == pytest.approx(7e-3)
    assert fixed_part(points, 10) == fixed_part(points, 16) == 2e-3
    steep = ((16, exact(1e-3)), (100_000, exact(2e-3)), (200_000, exact(9e-3)))
    assert fixed_part(steep, 150_000) == 1e-3  # the line would be below nothing


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.floats(1e-6, 10.0)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.integers(1, 2 * 10**9),
)
def test_what_does_not_grow_is_never_below_the_lowest_point_nor_above_the_whole(
    drawn: list[tuple[int, float]], nbytes: int
) -> None:
    points = tuple((size, exact(seconds)) for size, seconds in sorted(drawn))
    whole = at_size(points, nbytes).seconds
    assert min(latency(points), whole) <= fixed_part(points, nbytes) * (1 + 1e-9)
    assert fixed_part(points, nbytes) <= whole * (1 + 1e-9)


def test_the_latency_is_the_lowest_point() -> None:
    assert latency(((1, exact(2.0)), (1_000, exact(1.5)), (2_000, exact(3.0)))) == 1.5


def test_a_curve_without_points_is_refused() -> None:
    with raises("curve.no-measured-size"):
        at_size((), 10)
    with raises("curve.no-measured-batch"):
        at_batch({}, 10)


def test_a_measured_batch_is_given_back_as_it_is() -> None:
    point = about(3.0, 0.1)
    assert at_batch({4: exact(1.0), 8: point}, 8) is point


def test_between_batches_the_duration_is_straight() -> None:
    """4 samples 10 s, 8 samples 18 s: 2 s a sample, so 6 samples 14 s."""
    cost = at_batch({4: about(10.0, 0.1), 8: about(18.0, 0.1)}, 6)
    assert (cost.seconds, cost.low, cost.high) == pytest.approx((14.0, 12.6, 15.4))


def test_a_smaller_batch_never_costs_more_than_its_share_saves() -> None:
    """The line through (4, 1) and (8, 10) is negative at 1; the share of 4 samples that 1 sample has is 0.25 s."""
    assert at_batch({4: exact(1.0), 8: exact(10.0)}, 1).seconds == 0.25


def test_a_larger_batch_follows_the_last_two() -> None:
    """(4, 10), (8, 18), (16, 20): 0.25 s a sample at the end, so 32 samples take 24 s."""
    assert at_batch({4: exact(10.0), 8: exact(18.0), 16: exact(20.0)}, 32).seconds == 24.0


def test_from_one_batch_the_interval_reaches_from_proportional_to_fixed() -> None:
    cost = at_batch({8: exact(10.0)}, 4)
    assert (cost.seconds, cost.low, cost.high) == (5.0, 5.0, 10.0)
    assert cost.source.startswith("interpolated: in proportion")


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1e-6, 1.0), min_size=1, max_size=5),
    st.integers(1, 256),
    st.floats(0.0, 0.5),
)
def test_an_interpolated_duration_lies_in_its_own_interval(points: dict[int, float], batch: int, part: float) -> None:
    cost = at_batch({size: about(seconds, part) for size, seconds in points.items()}, batch)
    assert 0.0 <= cost.low <= cost.seconds <= cost.high


@given(
    st.lists(st.tuples(st.integers(1, 10**8), st.floats(1e-7, 1.0)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.integers(1, 10**9),
)
def test_a_rising_curve_never_falls(points: list[tuple[int, float]], nbytes: int) -> None:
    """More bytes never take less time than fewer do, where the points themselves rise."""
    sizes = sorted(size for size, _ in points)
    seconds = sorted(value for _, value in points)
    curve: list[tuple[int, Cost]] = [(size, exact(value)) for size, value in zip(sizes, seconds, strict=True)]
    less, more = at_size(curve, nbytes), at_size(curve, 2 * nbytes)
    assert less.seconds <= more.seconds * (1 + 1e-12)
    assert less.low <= less.seconds * (1 + 1e-12)
