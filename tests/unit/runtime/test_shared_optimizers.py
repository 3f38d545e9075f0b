"""Optimizers that may update shares of a parameter, and those that need the whole of it."""

import dataclasses
from typing import Any

import pytest
import torch
from tests import zoo

from trimaran.errors import InputError
from trimaran.runtime.tensor.layers import Draws, take_share
from trimaran.runtime.tensor.optimizers import check_optimizer


class Whitened(torch.optim.Optimizer):
    """Divides the gradient of a parameter by its norm."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter -= parameter.grad / parameter.grad.norm()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_what_treats_every_element_by_itself_is_taken(kind: Any) -> None:
    check_optimizer(dataclasses.replace(zoo.gpt(), optimizer=lambda parameters: kind(parameters, lr=0.1)))


@pytest.mark.parametrize("kind", [Whitened, torch.optim.Adafactor, torch.optim.LBFGS])
def test_what_needs_whole_parameters_is_refused(kind: Any) -> None:
    with pytest.raises(InputError, match=r"whole parameters|could not be tried"):
        check_optimizer(dataclasses.replace(zoo.gpt(), optimizer=lambda parameters: kind(parameters)))


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
