"""No lower bound on the step time is shown that a measured step is below."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trimaran.memory_budget.loop import OUTRUN, summarize


class _Plans(SimpleNamespace):
    def __len__(self) -> int:
        return 1


def report(*, step_s: float | None, bound_s: float) -> Any:
    outcome = SimpleNamespace(
        is_complete=True,
        run=SimpleNamespace(step_time_s=bound_s),
        bound=SimpleNamespace(step_time_s=bound_s),
        ratio_to_limit=1.0,
        plan=None,
    )
    tally = SimpleNamespace(
        last_planned=(), last=(), peak_bytes=1, steps=3, recorded=1, fell_back=0, step_time_s=step_s, notes=()
    )
    runner = SimpleNamespace(outcome=outcome)
    largest = SimpleNamespace(runner=runner, keep_peak_bytes=2, minimum_memory_bytes=1, compute_s=bound_s)
    plans = _Plans(largest=largest, device="cpu", budget_bytes=2, predicted_peak_bytes=1, codec="", coding_ratio=None)
    return summarize("run", cast(Any, tally), cast(Any, plans), 0)


@pytest.mark.parametrize(
    ("step_s", "shown"), [(None, 0.2), (0.3, 0.2), (0.1, None)], ids=["not measured", "slower", "faster than recorded"]
)
def test_a_bound_above_a_measured_step_is_not_shown(
    step_s: float | None, shown: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimaran.memory_budget.loop._decisions", lambda _: ())
    found = report(step_s=step_s, bound_s=0.2)
    assert found.lower_bound_s == shown
    assert found.planned_time_s == shown
    assert (OUTRUN in found.notes) is (shown is None)
    assert ("step, lower bound" in str(found)) is (shown is not None)
