"""Attention and recurrent layers."""

from typing import Any

import pytest
import torch
from tests.unit.graph.kernels.steps import meta, of_kind, worked
from torch import nn
from torch.nn import functional

from trimaran.graph.kernels.workload import Gradient, WorkKind
from trimaran.graph.types import Phase


class Outputs(nn.Module):
    """A recurrent layer whose states are not looked at."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)[0]


class Attends(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return functional.scaled_dot_product_attention(x, x[:, :, :3], x[:, :, :3])


def test_each_layer_of_an_lstm_is_three_works() -> None:
    """7 steps, 5 sequences; 12 in, 8 hidden, two layers: 4 x 8 x (12 + 8) weights, then 4 x 8 x (8 + 8)."""
    work = worked(lambda: Outputs(nn.LSTM(12, 8, num_layers=2)), meta(7, 5, 12).requires_grad_())
    found = of_kind(work, WorkKind.RECURRENT)
    first, second = (7, 5, 12, 8, 4, 1), (7, 5, 8, 8, 4, 1)
    assert [(one.phase, one.gradient, one.dims) for one in found] == [
        (Phase.FORWARD, Gradient.NONE, first),
        (Phase.FORWARD, Gradient.NONE, second),
        (Phase.BACKWARD, Gradient.INPUT, second),
        (Phase.BACKWARD, Gradient.WEIGHT, second),
        (Phase.BACKWARD, Gradient.INPUT, first),
        (Phase.BACKWARD, Gradient.WEIGHT, first),
    ]
    assert [one.flops for one in found[:2]] == [2 * 35 * 32 * 20, 2 * 35 * 32 * 16]
    assert len(work.gradients) == 8


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_cells_differ_by_their_gates(layer: Any, gates: int) -> None:
    work = worked(lambda: Outputs(layer(12, 8, bidirectional=True, batch_first=True)), meta(5, 7, 12))
    found = of_kind(work, WorkKind.RECURRENT)
    assert {one.dims for one in found} == {(7, 5, 12, 8, gates, 2)}
    assert found[0].flops == 2 * 35 * 2 * (gates * 8) * (12 + 8)


def test_a_projection_counts_as_work() -> None:
    """A state of 3 numbers: 4 x 8 x (12 + 3) weights of the cell, and 8 x 3 of the projection."""
    forward = of_kind(worked(lambda: Outputs(nn.LSTM(12, 8, proj_size=3)), meta(7, 5, 12)), WorkKind.RECURRENT)[0]
    assert forward.flops == 2 * 35 * (32 * 15 + 24)
    assert forward.dims == (7, 5, 12, 8, 4, 1)


def test_layers_have_the_shapes_and_gradients_of_torchs_own() -> None:
    """The same model on a CPU, where every step runs."""
    torch.manual_seed(0)
    model = nn.LSTM(12, 8, num_layers=2, bidirectional=True, dropout=0.5)
    output, (hidden, cell) = model(torch.randn(7, 5, 12))
    output.sum().backward()
    shapes: list[torch.Size] = []

    class Noted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(12, 8, num_layers=2, bidirectional=True, dropout=0.5)

        def forward(self, x: torch.Tensor) -> Any:
            out, ends = self.layer(x)
            shapes.extend([out.shape, *(end.shape for end in ends)])
            return out

    work = worked(Noted, meta(7, 5, 12))
    assert shapes == [output.shape, hidden.shape, cell.shape]
    assert {gradient.elements for gradient in work.gradients} == {p.numel() for p in model.parameters()}
    assert len(work.gradients) == len(list(model.parameters()))


def test_attention_is_one_work_each_way() -> None:
    """2 samples, 4 heads, 6 queries of 16, 3 keys."""
    work = worked(Attends, meta(2, 4, 6, 16).requires_grad_())
    forward, backward = of_kind(work, WorkKind.ATTENTION)
    assert forward.dims == backward.dims == (2, 4, 6, 3, 16)
    assert forward.flops == 2 * 2 * (2 * 4 * 6 * 3 * 16)
    assert (forward.gradient, backward.gradient) == (Gradient.NONE, Gradient.INPUT)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_what_lies_before_a_recurrent_layer_gets_its_gradient(layer: Any) -> None:
    """A table of 20 rows of 12, and four or two tensors of the layer."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 12), Outputs(layer(12, 8)))

    work = worked(make, torch.empty(5, 7, dtype=torch.long, device="meta"))
    assert [gradient.elements for gradient in work.gradients][-1] == 240
    assert len(work.gradients) == 5
    assert work.gradient_bytes == work.parameter_bytes
