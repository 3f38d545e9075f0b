"""Weights after an update, of a run and of one process: rounding passes, another update does not."""

import pytest
import torch
from torch import Tensor

from trimaran.trial.compare import _compare_weight

LAST_PLACE = 2.0**-23


def _updated(*, rounding: float = 0.0, lr: float = 1e-2, decay: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Weights before and after the second of two updates by AdamW, whose gradient is about that of the first reversed.

    Args:
        rounding: of the norm by which the gradient is clipped, relative
        lr: learning rate
        decay: of weights
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(10_000, generator=generator) / 100)
    gradients = torch.randn(10_000, generator=generator)
    optimizer = torch.optim.AdamW([weight], lr=1e-2, weight_decay=1e-2)
    weight.grad = gradients
    optimizer.step()
    before = weight.detach().clone()
    optimizer.param_groups[0].update(lr=lr, weight_decay=decay)
    weight.grad = -2 * gradients * torch.rand(10_000, generator=generator) * (1 + rounding)
    optimizer.step()
    return before, weight.detach().clone()


def test_a_norm_that_is_summed_in_another_order_passes() -> None:
    """Where a gradient cancels with the one before, the change of the weight is small, and its error is not."""
    before, expected = _updated()
    _, found = _updated(rounding=4 * LAST_PLACE)
    assert not torch.equal(found, expected)
    assert _compare_weight("w", found, expected, before).agrees


@pytest.mark.parametrize("other", [{"lr": 1.001e-2}, {"decay": 0.0}, {"rounding": 1e-3}])
def test_another_update_does_not(other: dict[str, float]) -> None:
    before, expected = _updated()
    assert not _compare_weight("w", _updated(**other)[1], expected, before).agrees
