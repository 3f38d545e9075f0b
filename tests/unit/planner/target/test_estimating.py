"""C = T · S · E with its interval and its cost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planner.target.estimates import contender, timed, training

from trimaran.planner.target_estimates import combine, estimate

POSITIVE = st.floats(1e-3, 1e3)
FACTORS = st.floats(1.0, 10.0)


def test_the_time_is_steps_times_their_time_and_the_cost_that_of_all_devices() -> None:
    """10 ms × 1,000 updates = 10 s; 4 devices for 10 s are 40 / 3,600 device-hours."""
    found = timed(devices=4, step_ms=10.0, updates=1000.0)
    assert found.time_s == pytest.approx(10.0)
    assert found.cost == pytest.approx(40 / 3600)
    assert found.cost_unit == "device-hours"


def test_step_times_steps_of_an_epoch_times_epochs_is_the_time() -> None:
    found = timed(step_ms=7.0, updates=250.0)
    assert found.training is not None
    assert found.training.epochs is not None
    steps, epochs = found.training.steps_per_epoch, found.training.epochs.amount
    assert steps is not None
    assert found.time_s == pytest.approx(0.007 * steps * epochs)


def test_uncertainties_add_in_quadrature_in_logarithms() -> None:
    """ln 2 of the step and ln 2 of the curve: the time is known within a factor of 2^√2 = 2.665."""
    found = timed(step_ms=10.0, updates=100.0, curve=2.0, spread=2.0)
    assert found.time_interval_s is not None
    assert found.time_interval_s == pytest.approx((1.0 / 2 ** math.sqrt(2), 2 ** math.sqrt(2)))


@given(step=POSITIVE, updates=POSITIVE, low=FACTORS, high=FACTORS, curve_low=FACTORS, curve_high=FACTORS)
def test_an_interval_holds_both_of_its_parts_and_no_more_than_their_product(
    step: float, updates: float, low: float, high: float, curve_low: float, curve_high: float
) -> None:
    ends = combine((step / low, step, step * high), (updates / curve_low, updates, updates * curve_high))
    median = step * updates
    slack = 1.0 + 1e-9
    assert ends[1] == pytest.approx(median)
    assert ends[0] <= median / max(low, curve_low) * slack
    assert ends[0] >= median / (low * curve_low) / slack
    assert ends[2] >= median * max(high, curve_high) / slack
    assert ends[2] <= median * high * curve_high * slack


def test_without_a_curve_there_is_no_time_and_no_cost() -> None:
    found = estimate(contender(), None)
    assert (found.time_s, found.time_interval_s, found.cost) == (None, None, None)
    assert found.value("time") == pytest.approx(0.010 / 64)


def test_a_price_is_paid_for_the_whole_time() -> None:
    found = estimate(
        contender(devices=2), training(360.0), price=lambda devices, seconds: 5.0 * devices * seconds, unit="EUR"
    )
    assert found.cost == pytest.approx(5.0 * 2 * 3.6)
    assert found.cost_unit == "EUR"
