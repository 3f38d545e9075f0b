"""Gradient buckets of a segment."""

from collections.abc import Sequence

import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.utils.checkpoint import checkpoint

from trimaran.base.errors import ExecutionError
from trimaran.runtime.parts.part import Used
from trimaran.runtime.parts.replica import BucketReducer


class Double:
    """Stands for an all-reduce with an equal partner: twice the gradient."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, number: int, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        assert flat.numel() == sum(parameter.numel() for parameter in parameters)
        self.seen.append(number)
        flat.mul_(2)


def layers(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))


def test_buckets_go_in_order_and_their_sums_are_the_gradients() -> None:
    model, plain = layers(3), layers(3)
    double = Double()
    reducer = BucketReducer([list(model[2].parameters()), list(model[1].parameters()), [model[0].weight]], double)
    x = torch.ones(1, 2)
    plain(x).sum().backward()
    reducer.arm()
    model(x).sum().backward()
    assert double.seen == [0, 1, 2]
    reducer.finish()
    assert double.seen == [0, 1, 2]
    for layer, own in ((2, model[2].weight), (1, model[1].bias), (0, model[0].weight)):
        expected = (plain[layer].bias if own.dim() == 1 else plain[layer].weight).grad
        assert torch.equal(own.grad, 2 * expected)  # type: ignore[arg-type,operator]
    assert torch.equal(model[0].bias.grad, plain[0].bias.grad)  # type: ignore[arg-type]


def test_only_the_backward_that_completes_the_gradients_reduces() -> None:
    """Gradients 1 + 1 accumulate, then are doubled: 4."""
    own = nn.Parameter(torch.zeros(1))
    double = Double()
    reducer = BucketReducer([[own]], double)
    own.sum().backward()
    assert double.seen == []
    reducer.arm()
    own.sum().backward()
    reducer.finish()
    assert own.grad is not None
    assert own.grad.tolist() == [4.0]


@pytest.mark.parametrize("watched", [True, False])
def test_a_parameter_without_a_gradient_counts_as_zeros(watched: bool) -> None:
    """Whether it has one afterwards depends on the others: where all use the same ones, it has none."""
    own, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    double = Double()
    used = Used([unused, own]) if watched else None
    reducer = BucketReducer([[unused, own]], double, used=used)
    reducer.arm()
    own.sum().backward()
    assert double.seen == []
    assert reducer.finish() == [unused]
    assert double.seen == [0]
    assert own.grad is not None
    assert own.grad.tolist() == [2.0]
    if used is None:
        assert unused.grad is None
        return
    assert unused.grad is not None
    assert unused.grad.tolist() == [0.0]
    counts = used.take("cpu")
    assert counts.tolist() == [0.0, 1.0]
    assert used.unused(counts) == [unused]
    assert used.take("cpu").tolist() == [0.0, 0.0]


def test_a_gradient_after_its_bucket_has_gone_is_an_error() -> None:
    """Reentrant checkpointing runs a backward inside the backward, so a layer that is used twice arrives twice."""
    layer = nn.Linear(2, 2)
    reducer = BucketReducer([list(layer.parameters())], Double())
    x = torch.ones(1, 2, requires_grad=True)
    output = checkpoint(layer, checkpoint(layer, x, use_reentrant=True), use_reentrant=True)
    reducer.arm()
    with raises("reducer.gradient-twice", ExecutionError, match="use_reentrant=False"):
        output.sum().backward()
