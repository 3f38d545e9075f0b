"""Evaluation mode."""

import torch
from torch import nn

from trimaran.runtime.parts.part import evaluating


def test_a_part_that_was_kept_in_evaluation_mode_stays_in_it() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    model[0].eval()
    with evaluating(model):
        assert not model.training
        assert not model[1].training
        assert not torch.is_grad_enabled()
    assert model.training
    assert model[1].training
    assert not model[0].training
