"""Recording a step for real: gradients as without, lives that add up, and nothing left behind."""

import pytest
import torch
from tests.dropped import live_dropped
from tests.unit.graph.trace.steps import NETWORKS, Step

from trimaran.graph.trace.live_bytes import live_kept
from trimaran.graph.trace.record import Recorder


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_a_recorded_step_are_those_of_autograd(name: str) -> None:
    step = Step(name)
    step.reset()
    loss, gradients = step.run(), step.gradients()
    step.reset()
    with Recorder(step.model):
        recorded = step.run()
    assert torch.equal(recorded, loss)
    assert all(torch.equal(value, gradients[name]) for name, value in step.gradients().items())


@pytest.mark.parametrize("name", NETWORKS)
def test_live_bytes_are_never_negative_and_dropping_never_needs_more(name: str) -> None:
    step = Step(name)
    with Recorder(step.model) as recorder:
        step.run()
    kept, dropped = live_kept(recorder.recording.trace), live_dropped(recorder.recording.trace)
    assert kept.min() >= 0
    assert dropped.min() >= 0
    assert (dropped <= kept).all()
