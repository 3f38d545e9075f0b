"""Gradients that are kept to be compared, without the rows that are zero.

The gradient of a table of embeddings has all of its rows, and a batch touches a few: several of them would take several
times the memory of the model. Where most rows are zero the others are kept, as a sparse tensor with one sparse dim.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_LARGE = 1 << 20
"""Elements from which on a gradient is kept without its zero rows."""

_MOST_ROWS = 0.25
"""Share of the rows that may be others than zero."""


def kept_gradient(gradient: Tensor) -> Tensor:
    """A copy of a gradient; without its zero rows where they are most of a large one."""
    gradient = gradient.detach()
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    if gradient.dim() > 1 and gradient.numel() >= _LARGE:
        rows = gradient.flatten(1).any(1)
        if int(rows.count_nonzero()) <= _MOST_ROWS * len(rows):
            numbers = rows.nonzero().t()
            return torch.sparse_coo_tensor(
                numbers, gradient[rows], gradient.shape, is_coalesced=True, check_invariants=False
            )
    return gradient.clone()


def whole_gradient(kept: Tensor) -> Tensor:
    """The gradient with all of its rows."""
    return kept.to_dense() if kept.is_sparse else kept


def largest(kept: Tensor) -> float:
    """The largest absolute value; not finite where there is one that is not; 0 without elements."""
    values = kept.coalesce().values() if kept.is_sparse else kept
    return float(values.abs().max()) if values.numel() else 0.0


def summed(kept: Sequence[Tensor]) -> Tensor:
    """The sum of gradients of one parameter."""
    if any(one.is_sparse for one in kept):
        total = kept[0] if all(one.is_sparse for one in kept) else whole_gradient(kept[0])
        for one in kept[1:]:
            total = total + (one if total.is_sparse else whole_gradient(one))
        return total
    return torch.stack(list(kept)).sum(0)


def largest_difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference of two gradients of one parameter."""
    return largest(summed([one, -other]))


def are_alike(one: Tensor, other: Tensor, tolerance: float = 0.0) -> bool:
    """Whether two tensors are of one form and differ by no more than a tolerance, of the largest value of the other.

    Args:
        one: may be without its zero rows
        other: likewise
        tolerance: 0: bit for bit
    """
    if one.is_nested or other.is_nested:
        alike = one.is_nested and other.is_nested and one.size(0) == other.size(0)
        return alike and all(are_alike(*pair, tolerance) for pair in zip(one.unbind(), other.unbind(), strict=True))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_sparse or other.is_sparse:
        return are_alike(whole_gradient(one), whole_gradient(other), tolerance)
    if not tolerance or not one.is_floating_point():
        return torch.equal(one, other)
    finite = other[other.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return bool(torch.allclose(one, other, rtol=0.0, atol=tolerance * scale, equal_nan=True))
