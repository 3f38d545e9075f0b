"""Closed forms of hybrid parallelism, against the arithmetic of the study.

Source:
    Pal et al., IEEE Micro 39(5), 2019; arXiv:1907.13257.
"""

import pytest
from tests.raising import raises

from trimaran_studies.reproduce.hybrid_speedup import hybrid_over_data, needed_worker_speedup


@pytest.mark.parametrize(
    ("epochs", "gain"),
    [
        ((4, 4), -0.34),  # 1.32 / 2
        ((7, 4), 0.155),  # 1.32 / 2 · 7 / 4
        ((12, 7), 0.1314),  # 1.32 / 2 · 12 / 7 = 1.13142…
        ((23, 12), 0.265),  # 1.32 / 2 · 23 / 12
    ],
)
def test_the_studys_gains_of_inception(epochs: tuple[int, int], gain: float) -> None:
    found = hybrid_over_data(2, worker_speedup=1.32, epoch_ratio=epochs[0] / epochs[1])
    assert found - 1 == pytest.approx(gain, abs=5e-5)


def test_exchange_that_spoils_large_groups_lowers_the_bar() -> None:
    """SE_MN / SE_N = 0.8 / 0.9, twice the batch needs 1.5 times the epochs: 2 · (8 / 9) / 1.5 = 1.185…"""
    assert needed_worker_speedup(2, epoch_ratio=1.5, efficiency_ratio=0.8 / 0.9) == pytest.approx(32 / 27)


@pytest.mark.parametrize("epochs", [0.0, -1.0, float("nan"), float("inf")])
def test_figures_that_mean_nothing_are_refused(epochs: float) -> None:
    with raises("hybrid.bad-epochs"):
        needed_worker_speedup(2, epoch_ratio=epochs)
