"""Laws of the closed forms of hybrid parallelism."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran_studies.reproduce.hybrid_speedup import hybrid_over_data, needed_worker_speedup

WIDTHS = st.integers(2, 16)
WORKERS = st.integers(1, 1024)
RATIOS = st.floats(0.05, 20.0)
SHARES = st.floats(0.05, 1.0)


@given(width=WIDTHS, workers=WORKERS, worker=RATIOS, few=RATIOS, many=RATIOS, low=SHARES, high=SHARES)
def test_the_criterion_is_the_comparison_of_both_speedups(
    width: int, workers: int, worker: float, few: float, many: float, low: float, high: float
) -> None:
    """SU^M_N / SU_MN, each by the study's formula, is what `hybrid_over_data` says."""
    hybrid = worker * high * workers / few
    data = low * width * workers / many
    found = hybrid_over_data(width, worker_speedup=worker, epoch_ratio=many / few, efficiency_ratio=low / high)
    assert found == pytest.approx(hybrid / data)


@given(width=WIDTHS, epochs=RATIOS, efficiency=RATIOS)
def test_a_worker_as_fast_as_needed_is_even(width: int, epochs: float, efficiency: float) -> None:
    needed = needed_worker_speedup(width, epoch_ratio=epochs, efficiency_ratio=efficiency)
    even = hybrid_over_data(width, worker_speedup=needed, epoch_ratio=epochs, efficiency_ratio=efficiency)
    assert even == pytest.approx(1.0)


@given(width=WIDTHS, share=st.floats(0.01, 0.999))
def test_without_more_epochs_a_hybrid_pays_only_with_a_perfect_worker(width: int, share: float) -> None:
    """Batches that need no more epochs: workers that do less than their devices are never ahead."""
    assert hybrid_over_data(width, worker_speedup=width * share, epoch_ratio=1.0) < 1.0
