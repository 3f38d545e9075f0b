import pytest
from tests.builders import about, exact

from trimaran.pricing.types import Cost, add, divide, multiply


def test_independent_errors_add_in_quadrature() -> None:
    """Half-widths 3 and 4 below, 6 and 8 above: 5 and 10."""
    total = add([Cost(10.0, 7.0, 16.0, "a"), Cost(20.0, 16.0, 28.0, "b")])
    assert (total.seconds, total.low, total.high) == (30.0, 25.0, 40.0)


def test_a_sum_names_the_source_of_its_longest_term() -> None:
    assert add([Cost(1.0, 1.0, 1.0, "a"), Cost(2.0, 2.0, 2.0, "b")]).source == "b"


def test_nothing_takes_no_time() -> None:
    assert add([]).seconds == 0.0


def test_a_common_factor_errs_for_the_whole_sum_at_once() -> None:
    """100 terms of 1 s with 10 % of error each: 100 s with 1 s of error; a factor known to 10 % makes that 10.05 s."""
    total = multiply(add([about(1.0, 0.1)] * 100), about(1.0, 0.1))
    assert total.high - total.seconds == pytest.approx((1.0**2 + 10.0**2) ** 0.5)


def test_an_interval_never_reaches_below_zero() -> None:
    assert multiply(about(1.0, 0.9), about(1.0, 0.9)).low == 0.0


def test_a_ratio_to_nothing_is_one() -> None:
    assert divide(exact(3.0), 2.0).seconds == 1.5
    assert divide(exact(3.0), 0.0).seconds == 1.0
