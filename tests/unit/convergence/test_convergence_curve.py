"""What a curve says of a batch: inside the data, beyond it, in other units."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.raising import raises

from trimaran.convergence.curve import fit_curve
from trimaran.convergence.types import CurveTable, Point

AMOUNTS = {256: 4.0, 1024: 6.0, 4096: 15.0}
TABLE = CurveTable(
    task="made",
    unit="epochs",
    points=tuple(Point(global_batch=batch, amount=amount) for batch, amount in AMOUNTS.items()),
    source="by hand",
    samples_per_epoch=10_000,
)


def test_a_curve_passes_through_its_points() -> None:
    curve = fit_curve(TABLE)
    for batch, amount in AMOUNTS.items():
        need = curve.need(batch)
        assert need.amount == pytest.approx(amount, rel=1e-6)
        assert need.low < amount < need.high
        assert need.source == "measured: 1 run"
        assert need.warnings == ()


def test_between_points_it_lies_between_them_and_is_less_sure() -> None:
    curve = fit_curve(TABLE)
    need, known = curve.need(2048), curve.need(1024)
    assert 6.0 < need.amount < 15.0
    assert math.log(need.high / need.low) > math.log(known.high / known.low)
    assert need.source == "interpolated: between 1024 and 4096"


def test_beyond_the_data_it_warns_and_widens_with_the_distance() -> None:
    curve = fit_curve(TABLE)
    widths = [math.log(need.high / need.low) for need in curve.needs((4096, 8192, 16384, 65536, 262144))]
    assert widths == sorted(widths)
    assert curve.need(8192).warnings == ("batch 8192 is 2 times the largest measured one, 4096",)
    assert curve.need(64).warnings == ("batch 64 is 1/4 of the smallest measured one, 256",)
    assert curve.need(8192).source == "extrapolated: from 4096"


def test_one_point_is_sure_at_its_batch_alone() -> None:
    curve = fit_curve(replace(TABLE, points=(Point(global_batch=1024, amount=6.0),)))
    there, near, far = curve.needs((1024, 2048, 65536))
    assert there.warnings == ()
    assert far.amount == near.amount == 6.0
    assert there.high / there.low < near.high / near.low < far.high / far.low
    assert "only batch 1024 was measured" in far.warnings[0]


def test_a_flat_table_stays_flat_inside_and_opens_upwards_beyond() -> None:
    points = tuple(Point(global_batch=batch, amount=5.0) for batch in (64, 256, 1024, 4096))
    curve = fit_curve(replace(TABLE, points=points))
    assert curve.need(512).amount == pytest.approx(5.0, rel=0.02)
    far = curve.need(65536)
    assert far.high / 5.0 > 5.0 / far.low


def test_many_runs_narrow_the_interval_and_few_are_drawn_to_their_neighbours() -> None:
    """A lone run that lies 30 % high between means of ten is not taken at its word."""
    steady = [Point(global_batch=b, amount=5.0, runs=10, deviation=0.1) for b in (64, 256, 1024, 4096)]
    lone = Point(global_batch=512, amount=6.5)
    points = (*steady[:2], lone, *steady[2:])
    curve = fit_curve(replace(TABLE, points=points))
    assert 5.0 < curve.need(512).amount < 6.5
    alone, sure = curve.need(512), curve.need(256)
    assert alone.high / alone.low > sure.high / sure.low
    assert sure.amount == pytest.approx(5.0, rel=1e-6)


def test_at_measured_batches_the_truth_is_within_the_interval_however_far_runs_stray() -> None:
    """90 % of 40 tables of three runs a batch that stray by 20 %, at each of 6 batches: 80 to 97 % allowed.

    Points of one table share its walk, so that the share itself strays by about 4 %.
    """
    draws, batches = np.random.default_rng(3), (16, 32, 64, 128, 256, 512)
    held = []
    for _ in range(40):
        points = []
        for batch in batches:
            runs = 5.0 * (1 + batch / 250) * np.exp(draws.normal(0.0, 0.2, 3))
            deviation = float(runs.std(ddof=1))
            values = tuple(map(float, runs))
            points.append(
                Point(global_batch=batch, amount=float(runs.mean()), runs=3, deviation=deviation, values=values)
            )
        needs = fit_curve(replace(TABLE, points=tuple(points))).needs(batches)
        held += [need.low <= 5.0 * (1 + batch / 250) <= need.high for batch, need in zip(batches, needs, strict=True)]
    assert 0.80 <= sum(held) / len(held) <= 0.97


def test_means_of_runs_that_stray_far_are_drawn_to_their_neighbours() -> None:
    """Three runs of 20 % whose mean is 20 % high between others of 5 epochs; of 4 % it is taken as it is."""
    drawn = []
    for spread in (0.04, 0.2):
        points = tuple(
            Point(global_batch=batch, amount=amount, runs=3, deviation=spread * amount)
            for batch, amount in ((64, 5.0), (128, 5.0), (256, 6.0), (512, 5.0), (1024, 5.0))
        )
        drawn.append(fit_curve(replace(TABLE, points=points)).need(256))
    usual, far = drawn
    assert usual.amount == pytest.approx(6.0, rel=1e-3)
    assert 5.1 < far.amount < 5.8
    assert far.low < 5.0 < far.high


def test_units_follow_from_one_another() -> None:
    """4 epochs of 10000 samples are 40000, in 156.25 updates of 256."""
    curve = fit_curve(TABLE)
    assert curve.epochs(256).amount == pytest.approx(4.0)
    assert curve.samples(256).amount == pytest.approx(40_000)
    assert curve.steps(256).amount == pytest.approx(156.25)
    assert curve.steps(256, samples_per_epoch=20_000).amount == pytest.approx(312.5)
    tokens = fit_curve(replace(TABLE, unit="tokens", tokens_per_sample=2))
    assert tokens.samples(256).amount == pytest.approx(2.0)


def test_units_that_are_not_known_are_asked_for() -> None:
    curve = fit_curve(replace(TABLE, samples_per_epoch=None))
    assert curve.epochs(256).unit == "epochs"
    with raises("curve.needs-samples-per-epoch", match="samples_per_epoch"):
        curve.steps(256)
    with raises("curve.needs-tokens-per-sample", match="tokens_per_sample"):
        fit_curve(replace(TABLE, unit="tokens")).samples(256)


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, 10**16])
def test_a_batch_that_is_none_is_refused(batch: int) -> None:
    with raises("curve.bad-batch"):
        fit_curve(TABLE).need(batch)


@pytest.mark.parametrize(
    ("points", "code", "figures"),
    [
        ((), "curve.no-points", {}),
        ((Point(global_batch=64, amount=math.nan),), "curve.amount-not-positive", {"batch": 64}),
        ((Point(global_batch=64, amount=1e31),), "curve.amount-out-of-range", {"match": "1e-30.*1e30", "batch": 64}),
        ((Point(global_batch=64, amount=1.0), Point(global_batch=64, amount=2.0)), "curve.batch-twice", {"batch": 64}),
        ((Point(global_batch=64, amount=1.0, deviation=-1.0),), "curve.bad-deviation", {}),
        (
            (Point(global_batch=64, amount=1.0, runs=2, values=(2.0, 3.0)),),
            "curve.mean-contradicts-runs",
            {"match": r"\b2\b.*\b1\b"},
        ),
        (
            tuple(Point(global_batch=b + 1, amount=1.0) for b in range(301)),
            "curve.too-many-points",
            {"match": r"\b300\b", "points": 301},
        ),
    ],
)
def test_tables_that_are_no_curve_are_refused(points: tuple[Point, ...], code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        fit_curve(replace(TABLE, points=points))


def test_single_runs_that_jump_are_taken_as_noisy() -> None:
    """5 epochs at every batch, half as many again at every other: no walk, but noise; the curve goes between."""
    amounts = [5.0 * (1.5 if n % 2 else 1.0) for n in range(10)]
    points = tuple(Point(global_batch=32 * 2**n, amount=amount) for n, amount in enumerate(amounts))
    curve = fit_curve(replace(TABLE, points=points))
    low, high = curve.need(64), curve.need(512)
    assert 5.1 < low.amount < 7.4
    assert 5.1 < high.amount < 7.4
    assert curve.need(181).low < 6.1 < curve.need(181).high


def test_points_that_are_given_are_passed_through_however_they_lie() -> None:
    points = tuple(Point(global_batch=32 * 2**n, amount=5.0 * (1.5 if n % 2 else 1.0)) for n in range(10))
    curve = fit_curve(replace(TABLE, points=points, projection=True))
    assert curve.need(64).amount == pytest.approx(7.5, rel=1e-6)
