"""What ranks that share tensors have of a parameter."""

import torch

from trimaran.runtime.tensor.sums import take_share


def test_shares_of_fused_sections_have_a_part_of_each() -> None:
    whole = torch.arange(12).reshape(6, 2)
    shares = [take_share(whole, 0, (2, 4), 2, shard) for shard in range(2)]
    assert shares[0].tolist() == [[0, 1], [4, 5], [6, 7]]
    assert shares[1].tolist() == [[2, 3], [8, 9], [10, 11]]
