"""What ranks that share tensors have of a parameter, and what they cannot draw."""

import pytest
import torch

from trimaran.errors import InputError
from trimaran.runtime.tensor.draws import check_attention_draws
from trimaran.runtime.tensor.sums import take_share


def test_shares_of_fused_sections_have_a_part_of_each() -> None:
    whole = torch.arange(12).reshape(6, 2)
    shares = [take_share(whole, 0, (2, 4), 2, shard) for shard in range(2)]
    assert shares[0].tolist() == [[0, 1], [4, 5], [6, 7]]
    assert shares[1].tolist() == [[2, 3], [8, 9], [10, 11]]


def test_dropout_of_attention_in_fused_kernels_is_refused_with_the_way_out() -> None:
    check_attention_draws(torch.device("cpu"), "fp32", "attention")
    check_attention_draws(torch.device("cuda"), "fp64", "attention")
    with pytest.raises(InputError, match=r"attention is drawn inside of a fused kernel on cuda.*--forbid tp"):
        check_attention_draws(torch.device("cuda"), "bf16", "attention")
