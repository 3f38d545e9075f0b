"""Costs of memory plans."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.raising import raises
from tests.unit.memory.traces import chain

from trimaran.graph.trace.types import TraceOp
from trimaran.pricing.offload_costs import MemoryCosts, measured_costs


def test_measured_durations_are_taken_from_the_trace() -> None:
    """Forward 1 s, a loss that takes none, backward 2 s; ticks take none."""
    costs = measured_costs(chain((10, 20), (1.0,)), to_host_bytes_per_s=5.0, to_device_bytes_per_s=10.0)
    assert costs.durations_s.tolist() == [1.0, 0.0, 0.0, 0.0, 2.0]
    assert (costs.compute_s, costs.to_host_s(20), costs.to_device_s(20)) == (3.0, 4.0, 2.0)


def test_a_trace_that_was_not_timed_is_refused() -> None:
    trace = chain((10, 20), (1.0,))
    events = tuple(
        dataclasses.replace(event, duration_s=None) if isinstance(event, TraceOp) else event for event in trace.events
    )
    with raises("memory-costs.not-timed", match=r"aten\.op\.default", moment=0):
        measured_costs(dataclasses.replace(trace, events=events), to_host_bytes_per_s=1.0, to_device_bytes_per_s=1.0)


@pytest.mark.parametrize(
    ("wrong", "code", "figures"),
    [
        (
            {"to_host_bytes_per_s": 0.0},
            "memory-costs.bad-rate",
            {"match": "to_host_bytes_per_s", "to_host_bytes_per_s": 0.0},
        ),
        (
            {"to_device_bytes_per_s": -1.0},
            "memory-costs.bad-rate",
            {"match": "to_device_bytes_per_s", "to_device_bytes_per_s": -1.0},
        ),
        (
            {"copy_latency_s": -1.0},
            "memory-costs.negative-latency",
            {"match": "copy_latency_s", "copy_latency_s": -1.0},
        ),
        ({"durations_s": np.array([1.0, float("nan")])}, "memory-costs.bad-durations", {}),
        ({"durations_s": np.array([1.0, -1.0])}, "memory-costs.bad-durations", {}),
    ],
)
def test_costs_that_cannot_be_are_refused(wrong: dict[str, object], code: str, figures: dict[str, Any]) -> None:
    fine = {
        "durations_s": np.ones(2),
        "to_host_bytes_per_s": 1.0,
        "to_device_bytes_per_s": 1.0,
        "copy_latency_s": 0.0,
        "source": "test",
    }
    with raises(code, **figures):
        MemoryCosts(**(fine | wrong))
