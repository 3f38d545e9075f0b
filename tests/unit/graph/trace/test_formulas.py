"""FLOP of attention kernels, by hand."""

import pytest
import torch

from trimaran.graph.flops import flops_of

KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")


def tensor(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize("heads", [8, 2, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_key_heads_that_query_heads_share_change_no_flops(kernel: str, heads: int) -> None:
    """2 samples, 8 heads, 5 queries and 7 keys 4 wide, values 3 wide.

    Scores are 2 * 2 * 8 * 5 * 7 * 4 = 4,480 FLOP, their product with the values 3,360. The backward has the scores
    again and the gradients of queries and keys, 3 * 4,480, and those of values and of what they were weighted with,
    2 * 3,360.
    """
    query, key, value = tensor(2, 8, 5, 4), tensor(2, heads, 7, 4), tensor(2, heads, 7, 3)
    forward = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}").default
    backward = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_backward").default
    assert flops_of(forward, (query, key, value), {}, None) == 7_840.0
    assert flops_of(backward, (tensor(2, 8, 5, 3), query, key, value), {}, None) == 20_160.0
