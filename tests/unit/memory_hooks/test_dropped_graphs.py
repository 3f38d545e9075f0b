"""Seen in the wild: a graph that is dropped without a backward keeps its memory, on the host or on the device."""

import gc
import weakref

import pytest
import torch
from tests.unit.memory_hooks.executing import executing, gradients, random_delays, record, same_bits
from tests.unit.memory_hooks.plans import MIXED, OFFLOAD, RECOMPUTE
from torch import nn

from trimaran.memory_hooks.accountant import Accountant


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh(), nn.GELU())))
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if self.fails and index == 5:
                raise ArithmeticError("half-way")
        return x


@pytest.mark.parametrize(
    "rule",
    [pytest.param(OFFLOAD, marks=pytest.mark.sweep), pytest.param(RECOMPUTE, marks=pytest.mark.sweep), MIXED, None],
)
def test_losses_without_a_backward_leave_nothing(rule: str | None) -> None:
    """Evaluation with gradients on, with a check of the loss that packs it again; exceptions half-way; then a step."""
    model, x = Network(), torch.randn(64, 32)

    def step() -> None:
        model(x).square().sum().backward()

    step()
    expected = gradients(model)
    recording = None if rule is None else record(step, model)
    model.zero_grad(set_to_none=False)
    gc.collect()
    options = {"keep": model.parameters(), "smallest_bytes": 1024, "rule": rule or OFFLOAD}
    with executing(recording, delay=random_delays(0, 5e-4), **options) as executor:
        with Accountant() as accountant, executor.hooks():
            for _ in range(3):
                loss = model(x).square().sum()
                assert loss.isfinite()
                del loss
            model.fails = True
            for _ in range(2):
                with pytest.raises(ArithmeticError):
                    model(x)
            model.fails = False
            step()
            done = executor.finish_step()
            assert done.mismatches == 0
        assert same_bits(gradients(model), expected)
    gc.collect()
    assert accountant.made_bytes == 0


def test_autograd_holds_no_circle() -> None:
    """A node that saves its own output must go with the tensor, not with the garbage collector."""
    x = torch.randn(64, requires_grad=True)
    recording = record(lambda: x.exp().sum().backward())
    gc.disable()
    try:
        for recorded, smallest in ((recording, 1), (recording, 1 << 20), (None, 1), (None, 1 << 20)):
            with executing(recorded, smallest_bytes=smallest, held=True) as executor, executor.hooks():
                y = x.exp()
                gone = weakref.ref(y.untyped_storage())
                del y
            # The copies under way, which held it, have ended with the block.
            assert gone() is None
    finally:
        gc.enable()


def test_an_executor_that_is_dropped_leaves_handles_that_still_work() -> None:
    x = torch.randn(64, 8, requires_grad=True)
    recording = record(lambda: x.exp().sin().sum().backward())
    x.grad = None
    with executing(recording) as executor:
        with executor.hooks():
            loss = x.exp().sin().sum()
        del executor
        loss.backward()
        assert torch.allclose(x.grad, (x.exp().cos() * x.exp()).detach(), rtol=0, atol=0)
        del loss
