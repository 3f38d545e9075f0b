"""What a run of a strategy says of the form that it runs in."""

import dataclasses

import pytest
from tests import builders
from tests.builders import problem

from trimaran.base.timeline import Span, Timeline
from trimaran.measure.trial_runs import WARM_UP_STEPS, TrialRun, fit_form, is_known, summarize_steps
from trimaran.planner.problem import assess
from trimaran.pricing.types import Cost

STRATEGY = builders.strategy(pp=2, schedule="zero-bubble", microbatches=2)


def test_the_faster_half_of_the_steps_counts() -> None:
    """Steps of 1 + 2 s, every other one disturbed to 3 + 6 s."""
    given = problem()
    program = assess(builders.strategy(), given).program
    spans = []
    for step in range(WARM_UP_STEPS + 10):
        factor = 3.0 if step % 2 else 1.0
        for token, seconds in (("0F0", 1.0), ("0B0", 2.0)):
            spans.append(
                Span(
                    rank=0, stream="compute", start_s=0.0, end_s=factor * seconds, instruction=f"r0/{token}", step=step
                )
            )
    found = summarize_steps(program, Timeline(spans))
    assert (found.forward_s, found.backward_s) == (1.0, 2.0)


def test_simulated_compute_is_then_as_long_as_the_measured(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_CACHE", str(tmp_path))
    given = problem()
    whole = Cost(0.1, 0.1, 0.1, "measured: by hand")
    wholes = {
        builders.whole_key(given.graph.digest, "graph"): {
            4: builders.whole_cost(forward=whole, backward=whole, evaluation=whole)
        }
    }
    table = dataclasses.replace(given.table, wholes=wholes)
    given = dataclasses.replace(given, table=table)
    before = assess(STRATEGY, given)
    assert not is_known(before.strategy, given.graph, table, microbatch=4)
    found = TrialRun(forward_s=0.5, backward_s=0.7, spread=0.05)
    fitted = fit_form(found, before.strategy, before.program, given.graph, table, given.cluster, batch=8)
    assert is_known(before.strategy, given.graph, fitted, microbatch=4)
    after = assess(STRATEGY, dataclasses.replace(given, table=fitted))
    forwards = sum(span.seconds for span in after.timeline if "F" in span.instruction and span.stream == "compute")
    assert forwards == pytest.approx(0.5, rel=1e-3)


def test_plain_forms_need_no_run() -> None:
    given = problem()
    assert is_known(builders.strategy(dp=2), given.graph, given.table, microbatch=4)
    assert not is_known(builders.strategy(dp=2, zero=3), given.graph, given.table, microbatch=4)
