"""Layers on a share of their weights compute in the precision in which whole ones do."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from trimaran.runtime.tensor.layers import ParallelEncoderLayer, RowParallelLinear


class Alone:
    """Edges of a region of one rank."""

    group: Any = None

    def enter(self, tensor: Tensor) -> Tensor:
        return tensor

    def leave(self, tensor: Tensor) -> Tensor:
        return tensor


@pytest.fixture(autouse=True)
def _autocast() -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


def test_the_bias_of_a_row_leaves_its_precision() -> None:
    """A bias in fp32 made the output of the layer fp32, and what follows it computed otherwise than in one process."""
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    found = RowParallelLinear(Alone(), 0)(x, layer.weight, layer.bias)
    assert found.dtype == layer(x).dtype == torch.bfloat16
    torch.testing.assert_close(found, functional.linear(x, layer.weight, layer.bias), rtol=0.02, atol=0.02)


def test_biases_of_an_encoder_layer_leave_its_precision() -> None:
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), torch.randn(2, 3, 8)
    attention = layer.self_attn
    heads = [attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight]
    features = [layer.linear1.weight, layer.linear1.bias, layer.linear2.weight]
    shared, seen = ParallelEncoderLayer(layer, Alone(), (3, 3)), []
    for dropout in (layer.dropout1, layer.dropout2):
        dropout.register_forward_hook(lambda _, given, made: seen.append(given[0].dtype))
    shared(x, [*heads, *features])
    assert seen == [torch.bfloat16, torch.bfloat16]
