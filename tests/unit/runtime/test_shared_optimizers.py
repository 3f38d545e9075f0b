"""What ranks that share tensors have of a parameter, and what they draw."""

import torch

from trimaran.runtime.tensor.layers import Draws, take_share


def test_shares_of_fused_sections_have_a_part_of_each() -> None:
    whole = torch.arange(12).reshape(6, 2)
    shares = [take_share(whole, 0, (2, 4), 2, shard) for shard in range(2)]
    assert shares[0].tolist() == [[0, 1], [4, 5], [6, 7]]
    assert shares[1].tolist() == [[2, 3], [8, 9], [10, 11]]


def test_a_rank_draws_its_own_numbers_inside_and_the_same_as_others_outside() -> None:
    drawn = []
    for shard in range(2):
        torch.manual_seed(5)
        draws = Draws(seed=shard, device=torch.device("cpu"))
        before = torch.rand(2)
        with draws.own():
            first = torch.rand(2)
        with draws.own():
            second = torch.rand(2)
        drawn.append((before, first, second, torch.rand(2)))
    same = [bool(torch.equal(one, other)) for one, other in zip(*drawn, strict=True)]
    assert same == [True, False, False, True]
    assert not torch.equal(drawn[0][1], drawn[0][2])
