"""Laws of convergence curves, for any table."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.convergence.curve import fit_curve
from trimaran.convergence.types import CurveTable, Point, Unit

POINTS = st.dictionaries(st.integers(1, 10**6), st.floats(1e-3, 1e6), min_size=1, max_size=7)


def _table(amounts: dict[int, float], unit: Unit = "epochs") -> CurveTable:
    points = tuple(Point(global_batch=batch, amount=amount) for batch, amount in amounts.items())
    return CurveTable(task="drawn", unit=unit, points=points, source="drawn")


@given(amounts=POINTS, batch=st.integers(1, 10**7))
def test_any_table_gives_an_ordered_finite_interval(amounts: dict[int, float], batch: int) -> None:
    curve = fit_curve(_table(amounts))
    need = curve.need(batch)
    assert 0 < need.low <= need.amount <= need.high < math.inf
    assert curve.fit.e0_interval[0] <= curve.fit.e0 <= curve.fit.e0_interval[1]
    assert curve.fit.b_crit_interval[0] <= curve.fit.b_crit <= curve.fit.b_crit_interval[1]


@given(amounts=POINTS)
def test_a_curve_passes_through_means_of_many_runs(amounts: dict[int, float]) -> None:
    """Five runs that stray by 5 % are surer than three that stray as published ones do, by 4.8 %."""
    points = tuple(Point(global_batch=b, amount=a, runs=5, deviation=0.05 * a) for b, a in amounts.items())
    curve = fit_curve(CurveTable(task="drawn", unit="epochs", points=points, source="drawn"))
    for batch, amount in amounts.items():
        assert math.isclose(curve.need(batch).amount, amount, rel_tol=1e-4)


@given(amounts=POINTS, factor=st.floats(1e-2, 1e2), batch=st.integers(1, 10**6))
def test_another_unit_of_the_amount_changes_nothing_else(amounts: dict[int, float], factor: float, batch: int) -> None:
    first, second = fit_curve(_table(amounts)), fit_curve(_table({b: a * factor for b, a in amounts.items()}))
    assert math.isclose(second.need(batch).amount, first.need(batch).amount * factor, rel_tol=1e-5)
    assert math.isclose(second.need(batch).high, first.need(batch).high * factor, rel_tol=1e-5)


@given(amounts=POINTS, batch=st.integers(1, 10**6))
def test_steps_are_samples_over_the_batch(amounts: dict[int, float], batch: int) -> None:
    steps, samples = fit_curve(_table(amounts, "steps")), fit_curve(_table({b: a * b for b, a in amounts.items()}))
    assert math.isclose(steps.steps(batch).amount, samples.need(batch).amount / batch, rel_tol=1e-9)


@settings(max_examples=25)
@given(amounts=st.dictionaries(st.integers(1, 10**5), st.floats(1.0, 3.0), min_size=2, max_size=6))
def test_the_interval_widens_away_from_the_data(amounts: dict[int, float]) -> None:
    curve = fit_curve(_table(amounts))
    last = max(amounts)
    widths = [math.log(need.high / need.low) for need in curve.needs(tuple(last * 4**n for n in range(5)))]
    assert widths == sorted(widths)
    assert widths[-1] > widths[0]
