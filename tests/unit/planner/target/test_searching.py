"""The search over batches and counts of devices against searches that look at everything."""

import dataclasses
import re

import pytest
from tests import builders
from tests.builders import problem

from trimaran.planner.choice import MODEL_ERROR
from trimaran.planner.pins import Pins
from trimaran.planner.problem import Problem
from trimaran.planner.search import search
from trimaran.planner.target_search import Grid, contender_of, nothing_fits_at_any, search_grid

BATCHES = (4, 8)


def problems(one: Problem | None = None, *, pins: Pins | None = None) -> dict[int, Problem]:
    base = one or problem()
    return {batch: dataclasses.replace(base, batch=batch, pins=pins or base.pins) for batch in BATCHES}


@pytest.mark.parametrize("weights", [{4: 1.0, 8: 1.0}, {4: 1.0, 8: 0.4}, {4: 1 / 4, 8: 1 / 8}])
@pytest.mark.parametrize("all_reduce_s", [1e-9, 10e-3, 1.0])
def test_nothing_beats_what_is_found_by_more_than_the_model_s_error(
    weights: dict[int, float], all_reduce_s: float
) -> None:
    """On each number of devices, against all candidates of whole searches at each batch."""
    from tests.builders import of_gradients

    some = problems(problem(all_reduce=of_gradients(all_reduce_s)))
    found = search_grid(Grid(problems=some, counts=(1, 2), weights=weights))
    everything = [contender_of(one, batch) for batch in BATCHES for one in search(some[batch]).candidates]
    for most in (1, 2):
        best = min(weights[one.global_batch] * one.step_time_s for one in found.contenders if one.devices <= most)
        least = min(weights[one.global_batch] * one.step_time_s for one in everything if one.devices <= most)
        assert best <= least * (1.0 + MODEL_ERROR) * (1.0 + 1e-9)
    assert found.is_complete


def test_data_parallelism_is_there_at_each_batch_and_count() -> None:
    found = search_grid(Grid(problems=problems(), counts=(1, 2), weights={4: 1.0, 8: 1.0}))
    cells = {(one.global_batch, one.devices) for one in found.contenders if not one.is_hybrid}
    assert cells == {(4, 1), (4, 2), (8, 1), (8, 2)}


def test_a_local_batch_beyond_the_limit_is_not_tried() -> None:
    """At most 4 samples of a replica: batch 8 needs two of them."""
    found = search_grid(Grid(problems=problems(), counts=(1, 2), weights={4: 1.0, 8: 1.0}, most_local_batch=4))
    assert {(one.global_batch, one.devices) for one in found.contenders if one.replicas == 1} <= {(4, 1), (4, 2)}
    assert all(one.local_batch <= 4 for one in found.contenders)


def test_where_a_whole_share_does_not_fit_its_gradients_are_added_up() -> None:
    """With room for no more than 4 samples at once, 8 on one device take two microbatches."""
    roomy = search_grid(Grid(problems=problems(), counts=(1,), weights={4: 1.0, 8: 1.0}))
    peaks = {(one.global_batch, one.microbatches): one.peak_bytes for one in roomy.contenders}
    assert set(peaks) == {(4, 1), (8, 1)}
    tight = problem(memory_bytes=(peaks[4, 1] + peaks[8, 1]) // 2)
    found = search_grid(Grid(problems=problems(tight), counts=(1,), weights={4: 1.0, 8: 1.0}))
    assert {(one.global_batch, one.microbatches) for one in found.contenders} >= {(4, 1), (8, 2)}
    assert all(one.microbatch <= 4 for one in found.contenders)


def test_pins_hold() -> None:
    found = search_grid(
        Grid(problems=problems(pins=builders.pins(forbid=("dp",))), counts=(1, 2), weights={4: 1.0, 8: 1.0})
    )
    assert all(one.replicas == 1 for one in found.contenders)


def test_nothing_that_fits_has_a_reason_at_each_batch() -> None:
    found = search_grid(Grid(problems=problems(problem(memory_bytes=1)), counts=(1, 2), weights={4: 1.0, 8: 1.0}))
    assert found.candidates == {}
    error = nothing_fits_at_any(found.rejected)
    assert error.code == "plan.no-batch-fits"
    assert re.search(r"\b4\b.*\b8\b.*\b0\b", error.message)
