"""Recurrent layers are traced at a glance, with the shapes that they have in a run."""

import pytest
import torch
from torch import nn

from trimaran.graph.capture.export import layers_at_a_glance

LAYERS = {
    "lstm": nn.LSTM(5, 7, batch_first=True),
    "two ways, two layers": nn.LSTM(5, 7, num_layers=2, bidirectional=True),
    "projected": nn.LSTM(5, 7, proj_size=3, batch_first=True),
    "gru": nn.GRU(5, 7, num_layers=2),
    "rnn": nn.RNN(5, 7, batch_first=True, bidirectional=True),
}


def shapes(result: object) -> list[torch.Size]:
    if isinstance(result, torch.Tensor):
        return [result.shape]
    assert isinstance(result, tuple)
    return [shape for part in result for shape in shapes(part)]


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch says that it is slow on a CPU
@pytest.mark.parametrize("name", LAYERS)
def test_shapes_are_those_of_a_run(name: str) -> None:
    layer = LAYERS[name]
    source = torch.zeros(4, 6, 5)
    with layers_at_a_glance(layer):
        glanced = shapes(layer(source))
    assert glanced == shapes(layer(source))


def test_a_layer_that_somebody_changed_is_traced_as_it_is() -> None:
    class Last(nn.LSTM):
        def forward(self, source: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(source)[0][:, -1]

    layer = Last(5, 7, batch_first=True)
    with layers_at_a_glance(layer):
        assert layer(torch.zeros(4, 6, 5)).shape == (4, 7)


def test_the_layer_is_as_before_afterwards() -> None:
    layer = nn.LSTM(5, 7)
    with layers_at_a_glance(layer):
        pass
    assert "forward" not in vars(layer)
