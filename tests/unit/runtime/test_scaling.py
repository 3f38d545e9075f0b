"""The scale of losses in fp16."""

import math

import pytest
import torch
from torch import nn

from trimaran.runtime.precision import LossScaler


def test_the_scale_is_that_of_torch_and_gradients_are_divided_by_it() -> None:
    """Steps of which the second and the third are not finite: 65,536, a half, a quarter, and it stays."""
    scaler, plain = LossScaler("cpu", lambda own: 0 if own else None), torch.amp.GradScaler("cpu")
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for value in (1.0, math.inf, math.nan, 3.0):
        scale = plain.get_scale()
        gradient = torch.full((2,), value * scale)
        plain.scale(torch.ones(()))
        weight.grad = gradient.clone()
        plain.unscale_(optimizer)
        plain.step(optimizer)
        plain.update()
        assert float(scaler.scale(torch.ones(()))) == scale
        scaler.unscale([gradient])
        assert torch.equal(gradient, weight.grad) or not math.isfinite(value)
        assert scaler.agree() == math.isfinite(value)
        assert scaler.scaler.state_dict() == plain.state_dict()
    assert (scaler.skipped, scaler.scaler.state_dict()["scale"]) == (2, 2.0**14)


@pytest.mark.parametrize("gradients", [[], [torch.ones(3)]])
def test_a_step_is_left_out_where_another_rank_has_what_is_not_finite(gradients: list[torch.Tensor]) -> None:
    scaler = LossScaler("cpu", lambda own: 1)
    scaler.scale(torch.ones(()))
    scaler.unscale(gradients)
    assert not scaler.agree()
    assert scaler.scaler.state_dict()["scale"] == 2.0**15


def test_it_goes_on_from_a_state() -> None:
    scaler = LossScaler("cpu", lambda own: None)
    scaler.scaler.load_state_dict({**scaler.scaler.state_dict(), "scale": 8.0})
    assert float(scaler.scale(torch.ones(()))) == 8.0
