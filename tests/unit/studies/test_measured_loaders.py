"""Steps that waited for torch's DataLoader, predicted from one row of each data set."""

from dataclasses import replace

import pytest

from trimaran_studies.validation.measured_loaders import (
    ALWAYS_THERE,
    LIMITED,
    LoaderStep,
    answer_measured_loaders,
    fitted_samples,
    is_fitted,
    loader_lines,
    measured_steps,
    predicted_step,
)
from trimaran_studies.validation.validate import scored

FIT = LoaderStep(
    row_id="reading-1-1",
    loader="reading",
    wait_s=8e-3,
    side=0,
    disk_s=0.0,
    ranks=1,
    workers=1,
    local_batch=16,
    cores=2,
    step_s=0.160,
    ready_step_s=0.005,
    machine="example",
)


def test_each_resource_is_predicted_by_its_own_rule() -> None:
    """A sample takes 10 ms. Reads of 3 workers take turns; a disk does not; two cores decode and train."""
    three, two = replace(FIT, workers=3), replace(FIT, workers=4, ranks=2)
    assert predicted_step(three, fitted_samples(FIT)) == pytest.approx(0.160 / 3)
    assert predicted_step(replace(FIT, workers=0), fitted_samples(FIT)) == pytest.approx(0.165)
    disk = fitted_samples(replace(FIT, wait_s=0.0, disk_s=4e-3))
    assert predicted_step(three, disk) == pytest.approx(0.160)
    assert predicted_step(two, disk) == pytest.approx(0.320)
    decoding = fitted_samples(replace(FIT, wait_s=0.0, side=320))
    assert predicted_step(two, decoding) == pytest.approx((2 * 0.160 + 2 * 0.005) / 2)
    both = fitted_samples(replace(FIT, side=320))
    assert (both.read.seconds, both.prepare.seconds) == (pytest.approx(8e-3), pytest.approx(2e-3))


def test_the_row_of_the_rate_is_not_predicted() -> None:
    answers = answer_measured_loaders([FIT, replace(FIT, row_id="reading-1-2", workers=2, step_s=0.081)])
    assert [answer.predicted for answer in answers] == [None, pytest.approx(0.080)]
    assert answers[1].anchors == ("reading-1-1",)


def test_at_least_thirty_rows_limited_by_their_loader_are_predicted() -> None:
    """Median at most 8 %; data always there are far off on the same rows."""
    found = [scored(answer) for answer in answer_measured_loaders()]
    limited = [
        row for row in found if row.error is not None and row.baselines[ALWAYS_THERE] < (1 - LIMITED) * row.measured
    ]
    errors = sorted(abs(row.error or 0.0) for row in limited)
    others = sorted(1.0 - row.baselines[ALWAYS_THERE] / row.measured for row in limited)
    assert len(limited) >= 30
    assert errors[len(errors) // 2] <= 0.08
    assert others[len(others) // 2] > 5 * errors[len(errors) // 2]
    (line,) = loader_lines(found)
    assert f"limited by the loader: {len(limited)} rows" in line


def test_rows_are_of_all_numbers_of_workers_on_one_process_and_on_two() -> None:
    steps = measured_steps()
    for loader in {step.loader for step in steps}:
        own = [step for step in steps if step.loader == loader]
        assert {(step.ranks, step.workers) for step in own} == {(r, w) for r in (1, 2) for w in range(5)}
        assert sum(is_fitted(step) for step in own) == 1
