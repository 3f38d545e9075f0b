"""The critical path of any simulated step is a chain without gaps from its start to its end."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.test_simulator_laws import Case, cases

from trimaran.planner.explanation.critical_path import TimeClass, critical_path, parts_of
from trimaran.simulator.engine import simulate


@given(case=cases(), at_once=st.sampled_from([1, 2]))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_the_classes_sum_to_the_makespan(case: Case, at_once: int) -> None:
    program, costs = case.build()
    costs = replace(costs, at_once=at_once)
    timeline = simulate(program, costs)
    legs = critical_path(program, costs)
    assert all(before.end_s == after.start_s for before, after in pairwise(legs))
    assert legs[0].start_s == 0.0
    assert legs[-1].end_s == timeline.makespan_s
    parts = parts_of(program, legs)
    assert sum(parts.values()) == pytest.approx(timeline.makespan_s)
    assert min(parts.values()) >= 0.0
    # Something is always under way: whatever starts does so at the instant that something else ends or passes a mark.
    assert parts[TimeClass.WAIT] == pytest.approx(0.0, abs=1e-9)
