import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.base.errors import ExecutionError
from trimaran.measure.findings import ListKey, fit_rounds, fit_tensors
from trimaran.pricing.types import Cost

LISTS = (ListKey(10, 4000), ListKey(5, 1500), ListKey(5, 100), ListKey(3, 3700))


def _costs(fixed: float, per_tensor: float, per_byte: float) -> dict[ListKey, Cost]:
    seconds = {key: fixed + per_tensor * key.tensors + per_byte * key.nbytes for key in LISTS}
    return {key: Cost(value, value, value, "measured") for key, value in seconds.items()}


@given(st.floats(0.0, 10.0), st.floats(0.0, 2.0), st.floats(0.0, 0.01))
def test_exact_durations_are_found_again(fixed: float, per_tensor: float, per_byte: float) -> None:
    """Also where one or two of the three are zero; figures below 1e-6 of the whole are not told from zero."""
    costs = _costs(fixed + 1e-3, per_tensor, per_byte)
    fit = fit_tensors(costs)
    for key, cost in costs.items():
        assert fit.at(tensors=key.tensors, nbytes=key.nbytes).seconds == pytest.approx(cost.seconds, rel=1e-6)


def test_no_coefficient_is_negative() -> None:
    """Longer lists that take less time would give a negative time a tensor."""
    seconds = dict(zip(LISTS, (3.0, 4.0, 5.0, 6.0), strict=True))
    fit = fit_tensors({key: Cost(value, value, value, "measured") for key, value in seconds.items()})
    assert min(fit.fixed_s, fit.per_tensor_s, fit.per_byte_s) >= 0.0


def test_the_whole_list_is_met_exactly_and_the_misfit_of_the_others_is_in_the_interval() -> None:
    """One list took twice what the plane through the others says."""
    costs = _costs(1.0, 0.5, 0.001)
    costs[LISTS[2]] = Cost(7.2, 7.2, 7.2, "measured")
    fit = fit_tensors(costs)
    whole = fit.at(tensors=10, nbytes=4000)
    assert whole.seconds == pytest.approx(costs[LISTS[0]].seconds)
    for key, cost in costs.items():
        found = fit.at(tensors=key.tensors, nbytes=key.nbytes)
        assert found.low * (1 - 1e-9) <= cost.seconds <= found.high * (1 + 1e-9)


def test_one_list_is_enough() -> None:
    fit = fit_tensors({ListKey(2, 100): Cost(3.0, 2.0, 6.0, "measured")})
    cost = fit.at(tensors=2, nbytes=100)
    assert (cost.seconds, cost.low, cost.high) == pytest.approx((3.0, 2.0, 6.0))


def test_where_nothing_is_trained_nothing_is_fitted() -> None:
    assert fit_rounds({}, how="").at(tensors=3, nbytes=12).seconds == 0.0


def test_durations_of_zero_are_refused() -> None:
    with raises("measure.no-time", ExecutionError):
        fit_tensors({ListKey(1, 1): Cost(0.0, 0.0, 0.0, "measured")})
