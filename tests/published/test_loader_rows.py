"""Published figures of one network on one machine with two loaders, or real and synthetic data.

Source of the rows: Oneflow-Inc/DLPerf and tensorflow/docs, as `trimaran_studies/published` has them. One rate of each
loader is taken from one row; what is asserted are the others.
"""

import functools

import pytest

from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation.loader_rates import answer_feeding
from trimaran_studies.validation.measurement import Answer


@functools.cache
def answers() -> tuple[Answer, ...]:
    return answer_feeding(published_rows("feeding"), anchor="single")


def test_rows_are_within_ten_percent_after_one_rate_of_each_loader() -> None:
    """All but one of 60, which 48 workers on four devices miss by 10.4 %: nothing says why they are slow there."""
    errors = [abs(found.error) for found in answers() if found.error is not None]
    assert len(errors) == 60
    assert sum(error <= 0.10 for error in errors) >= 59
    assert max(errors) < 0.11


def test_a_loader_of_eight_workers_is_the_limit_of_eight_devices() -> None:
    """1,070 images/s, where the devices could use 2,370 by the figure of one. Tolerance 2 %."""
    (found,) = (
        found
        for found in answers()
        if found.basis == "own loader, 8 workers" and found.row.fields["n_gpus"] == "8" and found.predicted is not None
    )
    assert found.row.measured == 1070.37
    assert found.predicted == pytest.approx(1070.37, rel=0.02)
    assert found.baselines is not None
    assert found.baselines["data always there"] > 2 * 1070
