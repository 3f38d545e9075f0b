from typing import Any

import torch
from tests.unit.graph.kernels.steps import meta, worked
from torch import nn

from trimaran.graph.kernels.workload import Gradient, WorkKind
from trimaran.graph.types import Phase


class Tied(nn.Module):
    """Rows of one table go in, and are compared with at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.between = nn.Linear(8, 8, bias=False)
        self.free = nn.Embedding(20, 8)

    def forward(self, tokens: torch.Tensor) -> Any:
        hidden = self.between(self.table(tokens)) + self.free(tokens)
        return hidden @ self.table.weight.t()


class Twice(nn.Module):
    """The same module at the beginning and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(6, 6, bias=False)
        self.between = nn.Linear(6, 6, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.shared(self.between(self.shared(x)))


def test_a_tied_weight_is_complete_when_its_first_use_is() -> None:
    """The backward ends with the table's rows; what the product gave is added to them then."""
    work = worked(Tied, torch.empty(4, 7, dtype=torch.long, device="meta"))
    by_name = {gradient.name: gradient for gradient in work.gradients}
    assert set(by_name) == {"table.weight", "between.weight", "free.weight"}
    assert work.gradients[-1].name == "table.weight"
    rows = [n for n, one in enumerate(work.works) if one.name == "aten.embedding_dense_backward"]
    assert by_name["table.weight"].work > max(rows)
    assert work.works[by_name["table.weight"].work].name in ("aten.add", "aten.add_")


def test_a_gradient_of_rows_alone_is_sparse() -> None:
    work = worked(Tied, torch.empty(4, 7, dtype=torch.long, device="meta"))
    assert {gradient.name: gradient.sparse for gradient in work.gradients} == {
        "table.weight": False,
        "between.weight": False,
        "free.weight": True,
    }


def test_a_shared_module_is_complete_when_its_first_call_is() -> None:
    work = worked(Twice, meta(5, 6))
    assert [gradient.name for gradient in work.gradients] == ["between.weight", "shared.weight"]
    products = [
        n
        for n, one in enumerate(work.works)
        if one.kind is WorkKind.PRODUCT and one.gradient is Gradient.WEIGHT and one.phase is Phase.BACKWARD
    ]
    assert len(products) == 3
    assert work.gradients[-1].work >= products[-1]


def test_gradients_in_backward_order_sum_to_the_parameters() -> None:
    """4 x 6 + 6, then 6 x 3 + 3; the last layer is complete first."""
    work = worked(lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), meta(10, 4))
    assert sum(gradient.elements for gradient in work.gradients) == 30 + 21
    assert work.gradient_bytes == work.parameter_bytes == 4 * 51
    assert [gradient.module for gradient in work.gradients] == ["1", "1", "0", "0"]
    assert sorted(gradient.work for gradient in work.gradients) == [gradient.work for gradient in work.gradients]


def test_the_last_parameter_of_a_layer_comes_first() -> None:
    """As the buckets of a graph have them: one backward completes both."""
    work = worked(lambda: nn.Conv2d(3, 4, 3), meta(2, 3, 8, 8))
    bias, weight = work.gradients
    assert (bias.name, weight.name, bias.work) == ("bias", "weight", weight.work)


def test_a_linear_layer_is_complete_when_its_node_has_run() -> None:
    """Without a bias it makes the gradient of its input last; hooks run, and messages start, behind that."""
    layers = nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False), nn.Tanh()
    work = worked(lambda: nn.Sequential(*layers).to("meta"), meta(10, 4))
    products = [n for n, one in enumerate(work.works) if one.phase is Phase.BACKWARD and one.kind is WorkKind.PRODUCT]
    assert [work.works[n].gradient for n in products] == [Gradient.WEIGHT, Gradient.INPUT, Gradient.WEIGHT]
    assert [(one.name, one.work) for one in work.gradients] == [("1.weight", products[1]), ("0.weight", products[2])]


def test_frozen_weights_have_no_gradient() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
        model[0].requires_grad_(False)
        return model

    assert {gradient.name for gradient in worked(make, meta(10, 4)).gradients} == {"1.bias", "1.weight"}


def test_under_autocast_a_gradient_is_complete_when_it_is_converted() -> None:
    work = worked(lambda: nn.Linear(4, 6, bias=False), meta(10, 4), autocast=torch.bfloat16)
    (gradient,) = work.gradients
    assert gradient.nbytes == 4 * 24
    assert work.works[gradient.work].kind is WorkKind.COPY
    assert [one.dtype for one in work.works if one.kind is WorkKind.PRODUCT] == ["bfloat16"] * 2
    assert [one.gradient for one in work.works if one.kind is WorkKind.PRODUCT] == [Gradient.NONE, Gradient.WEIGHT]
