"""Peaks: what was predicted is what a real run has, counted operation by operation, and never more than the budget."""

import pytest
from tests.reduced import REDUCED
from tests.representative import each
from tests.unit.memory_budget.virtual_loops import accumulating, train

TOLERANCE = 0.01
SHARES = {"resnet50": (0.5, 0.0), "gpt2": (0.5, 0.0), "lstm": (0.9, 0.0)}
"""Budgets between the floor and the peak without help, beside 0.7 for all; 0.0 is the floor and 2 %."""


@pytest.mark.parametrize("name", each(REDUCED, "alexnet", "densenet121", "gpt2", "lstm"))
def test_the_predicted_peak_is_that_of_a_real_run(name: str) -> None:
    fitting = train(name, accumulating(1, 3), budget="1GiB", account=True).report
    assert fitting is not None
    keep, floor = fitting.keep_peak_bytes, fitting.minimum_memory_bytes
    assert keep is not None
    assert floor is not None
    assert fitting.measured_peak_bytes == pytest.approx(keep, rel=TOLERANCE)
    for share in (0.7, *SHARES.get(name, ())):
        budget = max(int(keep * share), int(floor * 1.02))
        report = train(name, accumulating(1, 4), budget=budget, account=True, limit_s=0.5).report
        assert report is not None
        assert report.measured_peak_bytes is not None
        assert report.measured_peak_bytes <= budget
        assert report.measured_peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=TOLERANCE)
