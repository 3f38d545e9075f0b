"""A divided backward gives the gradients of a whole one, and keeps no more than it must."""

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from trimaran.runtime.step.dgrad_wgrad import Deferred


class Layers(nn.Module):
    """Every kind of layer that can wait, beside some that cannot; one weight is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 4, (3, 1), padding=(1, 0), groups=2)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2, output_padding=1)
        self.line = nn.Conv1d(3, 3, 3, padding="same")
        self.lines = nn.Conv1d(3, 3, 3, padding=1, padding_mode="circular")
        self.wide = nn.Linear(9, 9)
        self.frozen = nn.Linear(9, 9).requires_grad_(False)
        self.narrow = nn.Linear(9, 5)
        self.narrow.bias.requires_grad_(False)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.conv(x)))
        x = functional.relu(self.up(self.grouped(x)))
        x = self.lines(self.line(x.mean(-1)))
        x = self.wide(functional.gelu(self.wide(x)))
        x = self.frozen(functional.linear(x, self.wide.weight, self.wide.bias))
        return self.normed(self.narrow(x)).square().sum()


def images() -> torch.Tensor:
    return torch.randn(3, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def whole(model: nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    leaf = x.clone().requires_grad_()
    model(leaf).backward()
    return leaf.grad


def divided(model: nn.Module, x: torch.Tensor, arrived: Callable[[nn.Parameter], None]) -> torch.Tensor | None:
    leaf = x.clone().requires_grad_()
    deferred = Deferred()
    with deferred.recording():
        loss = model(leaf)
    loss.backward()
    gradient = leaf.grad
    deferred.run(arrived)
    return gradient


def test_gradients_are_those_of_a_whole_backward() -> None:
    """Of two microbatches, in fp64, to 1e-12: sums over the uses of a weight have another order."""
    torch.manual_seed(0)
    model = Layers().double()
    twin = copy.deepcopy(model)
    arrivals: list[nn.Parameter] = []
    for _ in range(2):
        expected = whole(twin, images())
        found = divided(model, images(), arrivals.append)
        torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-12)
    for (name, own), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (own.grad is None) == (other.grad is None), name
        if own.grad is not None and other.grad is not None:
            torch.testing.assert_close(own.grad, other.grad, rtol=0.0, atol=1e-12, msg=name)
    waited = {id(parameter) for parameter in arrivals}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in waited}
    assert names == {f"{layer}.{kind}" for layer in ("conv", "grouped", "up", "lines", "wide") for kind in _KINDS} - {
        "conv.bias"
    }
    # Told once for each microbatch, also of the weight that is used three times.
    assert len(arrivals) == 2 * len(waited)


_KINDS = ("weight", "bias")


def test_nothing_is_left_to_do_before_the_gradients_of_weights_but_their_products() -> None:
    """After the first half no weight that waits has a gradient, and every other one has."""
    model = Layers().double()
    deferred = Deferred()
    with deferred.recording():
        loss = model(images().requires_grad_())
    loss.backward()
    assert model.wide.weight.grad is None
    assert model.norm.weight.grad is not None
    assert model.normed.parametrizations.weight.original0.grad is not None


def test_what_other_operations_had_saved_is_gone_after_the_first_half_and_all_after_the_second() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    kept: list[weakref.ref[torch.UntypedStorage]] = []

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    def alive() -> list[bool]:
        gc.collect()
        return [reference() is not None for reference in kept]

    deferred = Deferred()
    with deferred.recording():
        made = seen(first(seen(torch.ones(2, 4)).requires_grad_()))
        gated = seen(torch.sigmoid(made) * made)
        loss = second(gated).sum()
    del made, gated
    assert alive() == [True, True, True]
    loss.backward()
    del loss
    assert alive() == [True, False, True]
    deferred.run(lambda parameter: None)
    assert alive() == [False, False, False]


def test_under_autocast_gradients_are_those_of_autocast() -> None:
    """In bf16, by the same kernels: to the last bit, but for the order of the sum of a bias."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    twin = copy.deepcopy(model)
    x = images().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = twin(x.requires_grad_()).float().square().sum()
    expected.backward()
    deferred = Deferred()
    with torch.autocast("cpu", dtype=torch.bfloat16), deferred.recording():
        found = model(x).float().square().sum()
    found.backward()
    deferred.run(lambda parameter: None)
    assert torch.equal(found, expected)
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert own.grad is not None
        assert own.grad.dtype is torch.float32
        torch.testing.assert_close(own.grad, other.grad, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("hooked", [True, False])
def test_a_weight_with_a_hook_does_not_wait(hooked: bool) -> None:
    layer = nn.Linear(2, 2)
    if hooked:
        layer.weight.register_hook(lambda gradient: 2 * gradient)
    deferred = Deferred()
    with deferred.recording():
        loss = layer(torch.ones(1, 2)).sum()
    loss.backward()
    assert (layer.weight.grad is None) == (not hooked)
    deferred.run(lambda parameter: None)
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[2.0, 2.0]] * 2 if hooked else [[1.0, 1.0]] * 2
