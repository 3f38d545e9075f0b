"""Points left out and foretold by the others."""

import pytest

from trimaran.convergence.curve import LeftOut, Quality, leave_one_out, pooled
from trimaran.convergence.types import CurveTable, Point


def _table(*amounts: float) -> CurveTable:
    points = tuple(Point(global_batch=64 * 2**n, amount=amount) for n, amount in enumerate(amounts))
    return CurveTable(task="made", unit="epochs", points=points, source="by hand")


def _left_out(measured: float, predicted: float, *, inside: bool = True) -> LeftOut:
    return LeftOut(
        global_batch_size=64,
        measured=measured,
        predicted=predicted,
        interval=(0.9 * predicted, 1.1 * predicted),
        inside=inside,
    )


def test_figures_are_means_over_the_points_left_out() -> None:
    """Errors +10 %, −20 %, +5 %: mean 35/3 %; those of both sides (10 + 5) / 2; 0.8 of 1.0 is not within 0.72–0.88."""
    quality = Quality(rms=0.1, left_out=(_left_out(1, 1.1), _left_out(1, 0.8, inside=False), _left_out(1, 1.05)))
    assert quality.leave_one_out_mean == pytest.approx(0.35 / 3)
    assert quality.leave_one_out_mean_inside == pytest.approx(0.075)
    assert quality.coverage_90 == pytest.approx(2 / 3)


def test_every_point_is_foretold_without_itself() -> None:
    """A point that lies high by a third in a flat table is foretold as flat."""
    found = leave_one_out(_table(6, 6, 8, 6, 6))
    assert [point.inside for point in found] == [False, True, True, True, False]
    assert found[2].predicted == pytest.approx(6.0, rel=0.05)
    assert not found[2].covered


def test_fewer_than_three_points_cannot_be_left_out() -> None:
    assert leave_one_out(_table(4, 5)) == ()
    assert Quality(rms=0.0, left_out=()).leave_one_out_mean is None


def test_long_tables_are_thinned() -> None:
    points = tuple(Point(global_batch=10 * n, amount=5.0) for n in range(1, 131))
    assert len(leave_one_out(CurveTable(task="made", unit="epochs", points=points, source="by hand"))) <= 60


def test_quality_over_tables_counts_points() -> None:
    """One point off by 0.3 and three by 0.1: sqrt((0.09 + 3 * 0.01) / 4) = 0.1732."""
    both = pooled([(Quality(rms=0.3, left_out=(_left_out(1, 1.1),)), 1), (Quality(rms=0.1, left_out=()), 3)])
    assert both.rms == pytest.approx(0.17320508)
    assert len(both.left_out) == 1
