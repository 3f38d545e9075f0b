from dataclasses import replace
from typing import Any

import torch
from tests.unit.graph.kernels.steps import meta, traced, worked
from torch import nn

from trimaran.graph.kernels.workload import affine
from trimaran.graph.trace.live_bytes import live_kept, step_memory


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


class ByBatch(nn.Module):
    """Takes another path for three samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x).relu() if len(x) == 3 else self.layer(x)


def test_any_batch_follows_from_two() -> None:
    form = affine(worked(network, meta(2, 3, 8, 8)), worked(network, meta(3, 3, 8, 8)))
    assert form is not None
    for batch in (1, 2, 3, 50):
        assert form.at(batch) == worked(network, meta(batch, 3, 8, 8))


def test_weights_do_not_grow() -> None:
    form = affine(worked(network, meta(2, 3, 8, 8)), worked(network, meta(3, 3, 8, 8)))
    assert form is not None
    small, large = form.at(1), form.at(1000)
    assert small.gradients == large.gradients
    assert large.flops() == 1000 * small.flops()


def test_a_step_that_depends_on_the_batch_has_no_such_form() -> None:
    assert affine(worked(ByBatch, meta(2, 4)), worked(ByBatch, meta(3, 4))) is None
    assert step_memory(traced(ByBatch, meta(2, 4)), traced(ByBatch, meta(3, 4)), batch=3) is None


def test_workloads_that_do_not_follow_each_other_have_none() -> None:
    low = worked(network, meta(2, 3, 8, 8))
    assert affine(low, replace(worked(network, meta(3, 3, 8, 8)), batch=4)) is None


def test_the_peak_at_any_batch_is_that_of_a_trace() -> None:
    """The moment of the peak changes: with few samples the weights decide, with many the images."""

    def wide() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 300), nn.Linear(300, 5))

    memory = step_memory(traced(wide, meta(2, 3, 8, 8)), traced(wide, meta(3, 3, 8, 8)), batch=3)
    assert memory is not None
    assert len(memory.lines) > 1
    for batch in (1, 2, 7, 40, 5000):
        assert memory.peak(batch) == live_kept(traced(wide, meta(batch, 3, 8, 8))).max()


def test_gradients_that_stay_are_there_at_every_moment() -> None:
    """For one product and its sum, gradients would come last; kept, they are there beside what the forward makes."""
    memory = step_memory(*(traced(lambda: nn.Linear(10, 10), meta(n, 10)) for n in (2, 3)), batch=3)
    assert memory is not None
    assert memory.gradient_bytes == memory.parameter_bytes == 440
    assert memory.peak(1) <= memory.peak(1, keeps_gradients=True) <= memory.peak(1) + 440
    assert memory.peak(10_000, keeps_gradients=True) >= 10_000 * 2 * 40 + 880
