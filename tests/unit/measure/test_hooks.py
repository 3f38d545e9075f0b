"""What hooks of saved tensors cost, measured on steps of which they are a large part."""

import pytest
import torch

from trimaran.graph.trace.record import Recorder
from trimaran.measure.offload import measure_hooks

pytestmark = pytest.mark.alone


def chain(operations: int, elements: int) -> None:
    """Each operation saves its input."""
    x = torch.ones(elements, requires_grad=True)
    for _ in range(operations):
        x = x.sin()
    x.sum().backward()


def test_many_small_tensors_cost_their_packs_and_move_nothing() -> None:
    """A pack with its unpack takes some microseconds of Python."""
    with Recorder() as recorder:
        chain(300, 4)
    costs = measure_hooks(lambda: chain(300, 4), recorder.recording)
    assert 1e-7 < costs.tick_s < 1e-3
    assert costs.moving_s_per_byte == costs.copying_s_per_byte == 0.0


def test_large_tensors_cost_the_copying_of_their_bytes() -> None:
    """There and back, at 0.1 to 1000 GB/s."""
    with Recorder() as recorder:
        chain(8, 2**18)
    costs = measure_hooks(lambda: chain(8, 2**18), recorder.recording)
    assert 2e-12 < costs.copying_s_per_byte < 2e-8
