"""Gradients that are kept to be compared."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from trimaran.graph.gradients import kept_gradient, largest, largest_difference, summed, whole_gradient


def of_table(rows: list[int], *, count: int = 1 << 17, width: int = 16) -> torch.Tensor:
    """The gradient of a table of embeddings in which some rows were looked up."""
    table = nn.Embedding(count, width)
    functional.embedding(torch.tensor(rows), table.weight).square().sum().backward()
    assert table.weight.grad is not None
    return table.weight.grad


def test_rows_that_are_zero_are_not_kept() -> None:
    gradient = of_table([3, 7, 7])
    kept = kept_gradient(gradient)
    assert kept.is_sparse
    assert kept.values().shape == (2, 16)
    assert torch.equal(whole_gradient(kept), gradient)
    assert largest(kept) == float(gradient.abs().max())


@pytest.mark.parametrize(("first", "second"), [([1, 2], [2, 5]), ([1], list(range(1 << 16))), ([], [4])])
def test_sums_and_differences_are_those_of_whole_gradients(first: list[int], second: list[int]) -> None:
    one, other = of_table(first or [0]) * bool(first), of_table(second)
    kept = [kept_gradient(one), kept_gradient(other)]
    assert torch.equal(whole_gradient(summed(kept)), one + other)
    assert largest_difference(*kept) == float((one - other).abs().max())
    assert largest_difference(kept[0], kept[0]) == 0.0


def test_what_is_no_number_is_told() -> None:
    gradient = of_table([3])
    gradient[9, 2] = float("nan")
    kept = kept_gradient(gradient)
    assert not largest(kept) < float("inf")
    assert not largest_difference(kept, kept_gradient(of_table([3]))) < float("inf")


def test_small_gradients_and_those_with_few_zero_rows_are_copied() -> None:
    for gradient in (torch.zeros(4, 4), torch.ones(1 << 10, 1 << 11), torch.ones(1 << 21), torch.tensor(1.0)):
        kept = kept_gradient(gradient)
        assert not kept.is_sparse
        assert torch.equal(kept, gradient)
        assert kept.data_ptr() != gradient.data_ptr()
