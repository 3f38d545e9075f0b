"""What ranks that share tensors have of a parameter, and what they cannot draw."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.raising import raises

from trimaran.graph.sharding.random_numbers import Draw
from trimaran.runtime.tensor.collectives import take_share
from trimaran.runtime.tensor.random_numbers import WholeDraws, check_attention_draws


def test_shares_of_fused_sections_have_a_part_of_each() -> None:
    whole = torch.arange(12).reshape(6, 2)
    shares = [take_share(whole, 0, (2, 4), 2, shard) for shard in range(2)]
    assert shares[0].tolist() == [[0, 1], [4, 5], [6, 7]]
    assert shares[1].tolist() == [[2, 3], [8, 9], [10, 11]]


def test_dropout_of_attention_in_fused_kernels_is_refused_with_the_way_out() -> None:
    check_attention_draws(torch.device("cpu"), "fp32", "attention")
    check_attention_draws(torch.device("cuda"), "fp64", "attention")
    with raises("shards.dropout-in-kernel", match="--forbid", op="attention"):
        check_attention_draws(torch.device("cuda"), "bf16", "attention")


@pytest.mark.parametrize("shard", [0, 1])
def test_a_share_is_dropped_as_that_of_the_whole(shard: int) -> None:
    """`native_dropout`, which is what dropout is on GPUs: the output, the mask and the gradient."""
    order, sections = (1, 0, 2), (4, 8)
    whole = torch.randn(5, 3, 12, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(5)
    expected, mask = torch.native_dropout(whole.permute(order).contiguous().permute(order), 0.3, True)
    expected.square().sum().backward()
    group: Any = SimpleNamespace(size=2, shard=shard)
    share = take_share(whole.detach(), 2, sections, 2, shard).requires_grad_()
    torch.manual_seed(5)
    with WholeDraws(group, Draw(right=-1, sections=sections, order=order)):
        found, own = torch.native_dropout(share, 0.3, True)
    found.square().sum().backward()
    after = torch.rand(1)
    assert torch.equal(own, take_share(mask, 2, sections, 2, shard))
    torch.testing.assert_close(found, take_share(expected, 2, sections, 2, shard), rtol=1e-14, atol=0)
    assert whole.grad is not None
    torch.testing.assert_close(share.grad, take_share(whole.grad, 2, sections, 2, shard), rtol=1e-14, atol=0)
    torch.manual_seed(5)
    torch.native_dropout(whole.detach(), 0.3, True)
    assert torch.equal(after, torch.rand(1)), "the generator is where that of one process is"
