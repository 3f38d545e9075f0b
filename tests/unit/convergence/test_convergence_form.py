"""The form E0 · (1 + B / Bcrit), fitted."""

import math

import numpy as np
import pytest

from trimaran.convergence.curve import fit_curve
from trimaran.convergence.types import CurveTable, Point, Unit

BATCHES = (32, 64, 128, 256, 512, 1024)


def _table(amounts: dict[int, float], unit: Unit = "epochs") -> CurveTable:
    points = tuple(Point(global_batch=batch, amount=amount) for batch, amount in amounts.items())
    return CurveTable(task="made", unit=unit, points=points, source="by hand")


def test_points_on_the_form_give_its_parameters() -> None:
    fit = fit_curve(_table({batch: 7.0 * (1 + batch / 300) for batch in BATCHES})).fit
    assert (fit.e0, fit.b_crit) == (pytest.approx(7.0, rel=1e-6), pytest.approx(300.0, rel=1e-5))
    assert fit.rms < 1e-6
    assert fit.e0_interval[0] < 7.0 < fit.e0_interval[1]
    assert fit.b_crit_interval[0] < 300.0 < fit.b_crit_interval[1]


def test_two_points_give_the_form_through_them() -> None:
    """10 at 100 and 15 at 200: 10 (1 + 200/b) = 15 (1 + 100/b) gives b = 100, and E0 = 5."""
    fit = fit_curve(_table({100: 10.0, 200: 15.0})).fit
    assert (fit.e0, fit.b_crit) == (pytest.approx(5.0), pytest.approx(100.0))


def test_points_that_do_not_rise_have_no_critical_batch() -> None:
    for amounts in ({64: 5.0, 256: 5.0, 1024: 5.0}, {64: 6.0, 256: 5.0, 1024: 4.0}):
        fit = fit_curve(_table(amounts)).fit
        assert fit.b_crit == math.inf
        assert fit.b_crit_interval[1] == math.inf
    assert fit_curve(_table({64: 5.0, 256: 5.0, 1024: 5.0})).fit.e0 == pytest.approx(5.0)


def test_one_point_is_its_own_e0() -> None:
    fit = fit_curve(_table({64: 5.0})).fit
    assert (fit.e0, fit.b_crit, fit.rms) == (5.0, math.inf, 0.0)
    assert fit.e0_interval[0] < 5.0 < fit.e0_interval[1]


def test_updates_that_stay_the_same_give_the_smallest_critical_batch_that_is_tried() -> None:
    """Samples in proportion to the batch: the limit of the form for Bcrit to 0."""
    fit = fit_curve(_table(dict.fromkeys(BATCHES, 100.0), unit="steps")).fit
    assert fit.b_crit <= 32 / 100 * 1.01


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """90 % of 60 tables of three runs a batch that stray by 6 %: 54 expected, 46 to 60 allowed."""
    draws = np.random.default_rng(7)
    held = 0
    for _ in range(60):
        points = []
        for batch in BATCHES:
            runs = 7.0 * (1 + batch / 300) * np.exp(draws.normal(0.0, 0.06, 3))
            mean, spread = float(runs.mean()), float(runs.std(ddof=1))
            values = tuple(float(run) for run in runs)
            points.append(Point(global_batch=batch, amount=mean, runs=3, deviation=spread, values=values))
        low, high = fit_curve(
            CurveTable(task="made", unit="epochs", points=tuple(points), source="drawn")
        ).fit.b_crit_interval
        held += low <= 300.0 <= high
    assert 46 <= held <= 60


def test_runs_that_are_nearly_equal_are_no_proof_of_certainty() -> None:
    """Three runs a batch that differ by a part in a million: their spread is weighed with that of published runs.

    As 4 runs of 4.836 % against 12 of nothing, and that again as 4 against 2: 4.836 % · √(1/4 · 4/6 / 3) = 1.14 % for a
    mean, so that E0 of six means is within 0.5 % at best.
    """
    points = []
    for batch in BATCHES:
        amount = 7.0 * (1 + batch / 300)
        values = (amount * (1 - 1e-6), amount, amount * (1 + 1e-6))
        points.append(Point(global_batch=batch, amount=amount, runs=3, deviation=amount * 1e-6, values=values))
    fit = fit_curve(CurveTable(task="made", unit="epochs", points=tuple(points), source="by hand")).fit
    assert fit.e0_interval[1] / fit.e0_interval[0] > 1.01
    assert fit.b_crit_interval[1] / fit.b_crit_interval[0] > 1.01


def test_the_same_table_gives_the_same_fit() -> None:
    table = _table({64: 4.0, 256: 5.5, 1024: 9.0})
    assert fit_curve(table) == fit_curve(table)
