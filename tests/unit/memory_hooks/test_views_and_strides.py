"""Seen in the wild: views that are not contiguous, start inside their storage or repeat elements come back wrong."""

from collections.abc import Callable

import pytest
import torch
from tests.unit.memory_hooks.executing import executing, record
from tests.unit.memory_hooks.plans import OFFLOAD, RECOMPUTE
from torch import nn

Look = Callable[[torch.Tensor], torch.Tensor]
LOOKS: dict[str, Look] = {
    "transposed": lambda x: x.t(),
    "offset": lambda x: x[3:7],
    "column": lambda x: x[:, 2],
    "every_third": lambda x: x[::3, ::2],
    "repeated": lambda x: x[:, :1].expand(12, 9),
    "repeated_scalar": lambda x: x[0, 0].expand(5, 5),
    "middle_third": lambda x: x.view(-1)[36:72].view(6, 6),
    "as_another_type": lambda x: x.detach().view(torch.int32).view(torch.float32) * 1.0 + x,
}


@pytest.mark.parametrize("rule", [OFFLOAD, RECOMPUTE])
@pytest.mark.parametrize("look", LOOKS)
def test_the_tensor_comes_back_with_its_shape_stride_and_values(look: str, rule: str) -> None:
    weights = nn.ParameterList([torch.randn(12, 9, generator=torch.Generator().manual_seed(3))])
    x = weights[0]
    seen: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(y)
            return y.clone()

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            (y,) = ctx.saved_tensors
            seen.append((tuple(y.shape), y.stride(), y.storage_offset()))
            return gradient * y

    def step() -> torch.Tensor:
        (gradient,) = torch.autograd.grad(Keeps.apply(LOOKS[look](x * 2)).sum(), x)
        return gradient

    expected = step()
    recording = record(step, weights)
    with executing(recording, rule=rule) as executor:
        with executor.hooks():
            assert torch.equal(step(), expected)
        done = executor.finish_step()
        assert done.to_host_bytes > 0 or done.recomputations > 0
    with executing(None, keep=weights) as executor, executor.hooks():
        assert torch.equal(step(), expected)
    assert len(seen) == 4
    assert len(set(seen)) == 1


def test_only_the_bytes_under_the_packed_views_are_copied() -> None:
    """Rows 3 to 6 of 12 rows of 9 elements of 4 bytes: 4 · 9 · 4 = 144 bytes."""
    x = torch.randn(12, 9, requires_grad=True)

    def step() -> None:
        (x * 2)[3:7].sin().sum().backward()

    with executing(record(step)) as executor:
        with executor.hooks():
            step()
        assert executor.finish_step().to_host_bytes == 144


def test_conjugated_and_sparse_tensors_are_left_to_autograd() -> None:
    x = torch.randn(6, 6, dtype=torch.complex64, requires_grad=True)
    sparse = torch.eye(6).to_sparse()

    def step() -> torch.Tensor:
        value = (torch.mm(x.conj(), x) * x.conj()).abs().sum() + torch.sparse.mm(sparse, x.real).sin().sum()
        (gradient,) = torch.autograd.grad(value, x)
        return gradient

    expected = step()
    recording = record(step)
    with executing(recording) as executor, executor.hooks():
        assert torch.equal(step(), expected)
        assert executor.finish_step().mismatches == 0
