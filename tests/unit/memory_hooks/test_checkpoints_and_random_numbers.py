"""Seen in the wild: what a checkpoint recomputes is taken for the forward; dropout is recomputed with another mask."""

import pytest
import torch
from tests.unit.memory_hooks.executing import executing, gradients, random_delays, record, same_bits
from tests.unit.memory_hooks.plans import MIXED, OFFLOAD, RECOMPUTE, plan_by_rule
from torch import nn
from torch.utils.checkpoint import checkpoint

from trimaran.graph.trace.types import TraceOp


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)
        self.block = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 32), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).tanh()
        x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.last(x).tanh()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("rule", [OFFLOAD, RECOMPUTE, MIXED])
def test_a_checkpoint_inside_is_right_under_each_rule(rule: str, reentrant: bool) -> None:
    model, x = Checkpointed(reentrant=reentrant), torch.randn(64, 32)

    def step() -> None:
        torch.manual_seed(7)
        model.zero_grad()
        model(x).square().sum().backward()

    step()
    expected = gradients(model)
    recording = record(step, model)
    with executing(recording, rule=rule, delay=random_delays(0)) as executor:
        for _ in range(2):
            with executor.hooks():
                step()
            assert same_bits(gradients(model), expected)
        assert executor.finish_step().mismatches == 0
    with executing(None, keep=model.parameters()) as executor, executor.hooks():
        step()
    assert same_bits(gradients(model), expected)


def test_no_recipe_draws_random_numbers() -> None:
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()),
        torch.randn(64, 32),
    )

    def step() -> None:
        torch.manual_seed(3)
        model.zero_grad()
        model(x).square().sum().backward()

    step()
    expected = gradients(model)
    recording = record(step, model)
    plan = plan_by_rule(recording.trace, RECOMPUTE)
    assert plan.recipes
    ops = [recording.trace.events[moment] for recipe in plan.recipes.values() for moment in recipe.ops]
    assert not any(isinstance(op, TraceOp) and ("dropout" in op.name or "bernoulli" in op.name) for op in ops)
    with executing(recording, plan) as executor:
        with executor.hooks():
            step()
            state = torch.get_rng_state()
        assert same_bits(gradients(model), expected)
    step()
    assert torch.equal(torch.get_rng_state(), state)
