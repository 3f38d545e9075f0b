"""Modules that run on a part of the batch at a time: what they compute, and what is never there."""

from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import nn

from trimaran.memory_hooks.splitting import Split, splitting


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 5, 3),
        )
        self.classifier = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    if x.requires_grad:
        x.grad = None
    model(x).square().sum().backward()
    inputs = [x] if x.requires_grad else []
    return [tensor.grad.clone() for tensor in (*model.parameters(), *inputs)]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("wants_input_gradient", [False, True])
@pytest.mark.parametrize("parts", [2, 3, 16])
def test_the_gradients_are_those_of_the_whole_batch_but_for_rounding(
    first: int, wants_input_gradient: bool, parts: int
) -> None:
    """Summed in fp64, so that what is left of a difference would be an error; 7 samples do not divide."""
    torch.manual_seed(0)
    model = _Net().double()
    x = torch.randn(7, 3, 8, 8, dtype=torch.float64, requires_grad=wants_input_gradient)
    plain = gradients(model, x)
    with splitting(model, [Split(parent="features", first=first, last=4, parts=parts)]):
        split = gradients(model, x)
    for ours, theirs in zip(split, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_what_is_inside_is_never_saved_for_the_whole_batch() -> None:
    model, saved = _Net(), []
    x = torch.randn(8, 3, 8, 8)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t)
    with splitting(model, [Split(parent="features", first=0, last=4, parts=4)]), hooks:
        model(x).sum()
    assert (8, 3, 8, 8) in saved
    assert (8, 4, 8, 8) not in saved


def test_the_model_is_as_it_was_afterwards() -> None:
    model = _Net()
    with pytest.raises(ZeroDivisionError), splitting(model, [Split(parent="features", first=0, last=4, parts=2)]):
        raise ZeroDivisionError
    assert "forward" not in vars(model.features)


@pytest.mark.parametrize(
    ("parent", "first", "last", "parts", "code", "figures"),
    [
        ("nowhere", 0, 1, 2, "split.no-such-module", {"module": "nowhere"}),
        ("", 0, 1, 2, "split.not-sequential", {"match": "nn.Sequential"}),
        ("features", 0, 6, 2, "split.bad-range", {"match": r"\b0\b.*\b5\b"}),
        ("features", 0, 4, 1, "split.bad-range", {"match": r"\b2\b"}),
    ],
)
def test_a_place_that_cannot_be_split_is_refused(
    parent: str, first: int, last: int, parts: int, code: str, figures: dict[str, Any]
) -> None:
    with (
        raises(code, **figures),
        splitting(_Net(), [Split(parent=parent, first=first, last=last, parts=parts)]),
    ):
        pass


@pytest.mark.parametrize("module", [nn.BatchNorm2d(4), nn.Dropout2d()])
def test_what_mixes_samples_or_draws_is_refused(module: nn.Module) -> None:
    model = _Net()
    model.features[1] = module
    with (
        raises("split.depends-on-batch", match=type(module).__name__, module="features.1"),
        splitting(model, [Split(parent="features", first=0, last=4, parts=2)]),
    ):
        pass
