"""What ranks can share is found in the dataflow graph: networks that are not ours, under any names, and refusals."""

from typing import Any

import pytest
import torch
from tests import zoo
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils.data import TensorDataset

from trimaran.base.job import Job
from trimaran.graph.capture.capture import capture
from trimaran.graph.sharding.calls import NotSharedError, Spread, reshaped
from trimaran.graph.types import Graph, Region

WIDTH = 12


class Fused(nn.Module):
    """Attention with one matrix for queries, keys and values, taken apart by a view, with heads written down."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.one(x).view(x.shape[0], 5, 3, 4, 3).permute(2, 0, 3, 1, 4).unbind(0)
        return self.two(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).reshape(x.shape[0], 5, WIDTH))


class Gated(nn.Module):
    """A gate and what it lets through, from one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 32), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, through = self.inner(x).chunk(2, dim=-1)
        return self.outer(functional.silu(gate) * through)


class Scaled(nn.Module):
    """A scale of every feature between two layers: a whole parameter of which each rank takes its share."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x).relu() * self.scale)


class Normed(nn.Module):
    """A norm over what would be split."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(functional.layer_norm(self.inner(x), (16,)))


class Residual(nn.Module):
    """What would be split is read whole, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.inner(x)
        return states + self.outer(states.relu())


class Shared(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(self.inner(x).relu()).relu())


def graph_of(model: Any) -> Graph:
    data = TensorDataset(torch.zeros(8, 5, WIDTH), torch.zeros(8, 5, WIDTH))
    job = Job(
        name="small",
        model=model,
        loss=functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: data,
        global_batch_size=4,
    )
    return capture(job).graph


def only(graph: Graph) -> Region:
    assert len(graph.regions) == 1, graph.whole
    return graph.regions[0]


def test_heads_in_one_matrix_are_split_each_by_itself() -> None:
    region = only(graph_of(Fused))
    assert (region.columns, region.rows, region.units) == (("one",), ("two",), 4)
    assert {split.parameter: (split.dim, split.sections) for split in region.splits} == {
        "one.weight": (0, (12, 12, 12)),
        "one.bias": (0, (12, 12, 12)),
        "two.weight": (1, (12,)),
    }
    assert [entry.op for entry in region.entries] == []  # the input of the model wants no gradient


def test_a_gate_and_what_it_lets_through_are_split_each_by_itself() -> None:
    region = only(graph_of(Gated))
    assert region.splits[0].sections == (16, 16)
    assert region.units == 16


def test_a_whole_parameter_inside_wants_its_gradient_summed() -> None:
    region = only(graph_of(Scaled))
    assert [(entry.tensor, entry.op) for entry in region.entries] == [("scale", "mul")]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Normed, "normalizes over the split dimension"),
        (Residual, "cannot be split|reads what another layer"),
        (Shared, "read by several operations|cannot be split|weights for what is split|reads what another layer"),
    ],
)
def test_what_is_not_provably_the_same_stays_whole(model: Any, reason: str) -> None:
    graph = graph_of(model)
    assert all(region.kind == "layer" for region in graph.regions)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(graph.whole["inner"])


def test_recurrent_and_convolutional_networks_have_no_pairs() -> None:
    for job in (zoo.lstm(), zoo.cnn()):
        assert not [region for region in capture(job).graph.regions if region.kind == "pair"]


def test_attention_of_products_and_masks_is_a_pair() -> None:
    graph = capture(zoo.gpt()).graph
    pairs = [region for region in graph.regions if region.kind == "pair"]
    assert [region.columns for region in pairs[:2]] == [("blocks.0.attention.qkv",), ("blocks.0.mlp.0",)]
    assert [region.units for region in pairs[:2]] == [4, 128]


def test_modules_of_torch_with_heads_inside_are_regions() -> None:
    graph = graph_of(lambda: nn.TransformerEncoderLayer(WIDTH, 3, 24, dropout=0.0, batch_first=True))
    # As the model itself it is looked into.
    assert [(region.kind, region.units) for region in graph.regions] == [("attention", 3), ("pair", 24)]
    graph = graph_of(
        lambda: nn.Sequential(nn.TransformerEncoderLayer(WIDTH, 3, 24, dropout=0.0, batch_first=True), nn.Identity())
    )
    assert [(region.kind, region.units) for region in graph.regions] == [("attention", 3), ("attention", 24)]


def test_a_view_that_joins_the_split_dimension_to_one_before_it_is_refused() -> None:
    with pytest.raises(NotSharedError, match="joins"):
        reshaped(Spread(1, (4,)), (2, 4, 5, 3), (8, 5, 3))


class Normed(nn.Module):
    """Attention whose last matrix is made by a parametrization, and a layer whose matrix an earlier call has kept."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.layer = nn.MultiheadAttention(WIDTH, 3, batch_first=True), nn.Linear(WIDTH, WIDTH)
        parametrizations.weight_norm(self.attend.out_proj)
        parametrize.register_parametrization(self.layer, "weight", Mirrored())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = self.attend(x, x, x, need_weights=False)[0]
        with parametrize.cached():
            self.layer(attended)
            return self.layer(torch.tanh(attended))


class Mirrored(nn.Module):
    """The upper triangle, and its mirror image."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).transpose(0, 1)


def test_matrices_of_parametrizations_are_not_shared() -> None:
    """Parts of what they are made of make no parts of them."""
    columns = [op for region in graph_of(Normed).regions for op in region.columns]
    assert not columns
