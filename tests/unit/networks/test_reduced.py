"""The reduced networks, with which other tests work: they train, and a seed decides everything."""

import pytest
import torch
from tests.reduced import REDUCED, step


@pytest.mark.parametrize("name", REDUCED)
def test_every_parameter_of_a_reduced_network_is_trained(name: str) -> None:
    torch.manual_seed(0)
    model = REDUCED[name].model()
    loss = step(REDUCED[name], model)
    assert loss.isfinite()
    untrained = [path for path, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert untrained == []


@pytest.mark.parametrize("name", REDUCED)
def test_a_step_of_a_seed_is_the_same_every_time(name: str) -> None:
    def gradients() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        model = REDUCED[name].model()
        step(REDUCED[name], model, seed=5)
        return tuple(parameter.grad for parameter in model.parameters())

    assert all(map(torch.equal, gradients(), gradients()))
