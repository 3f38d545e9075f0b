"""Gradients under a plan are those of plain autograd, bit for bit, and memory is what the plan says, byte for byte."""

import copy

import pytest
import torch
from tests.reduced import REDUCED, step
from tests.representative import each
from tests.unit.memory_hooks.executing import executing, gradients, random_delays, record, same_bits
from tests.unit.memory_hooks.plans import MIXED, OFFLOAD, RECOMPUTE, plan_by_rule

from trimaran.memory_hooks.accountant import Accountant
from trimaran.simulator.memory import live_bytes

STEPS = 3


@pytest.mark.parametrize("name", each(sorted(REDUCED), "alexnet", "gpt2", "lstm", "unet", "vit"))
def test_three_steps_under_each_rule_are_those_of_plain_autograd(name: str) -> None:
    """Under each rule copies are stretched at random, and recipes are compared with the real bytes in the second step.

    At ticks whose steps change nothing within the tick, the bytes that are there are those of `live_bytes`; the peak
    of the step is its peak. Running statistics of batch norms are compared as well.
    """
    network = REDUCED[name]
    torch.manual_seed(0)
    model = network.model()
    start = copy.deepcopy(model.state_dict())
    expected = []
    for seed in range(STEPS):
        model.zero_grad()
        step(network, model, seed)
        expected.append(gradients(model))
    end = copy.deepcopy(model.state_dict())
    model.load_state_dict(start)
    model.zero_grad()
    recording = record(lambda: step(network, model), model)
    for rule in (OFFLOAD, RECOMPUTE, MIXED):
        plan = plan_by_rule(recording.trace, rule, smallest_bytes=64)
        assert plan.moved, "a plan that moves nothing shows nothing"
        model.load_state_dict(start)
        seen: dict[int, int] = {}
        live = live_bytes(recording.trace, plan)
        busy = {moved.moment for moved in plan.steps}
        with executing(recording, plan, delay=random_delays(0), observe=lambda moment: note(moment)) as executor:
            for seed in range(STEPS):
                model.zero_grad()
                executor.begin_forward(verify=seed == 1)
                accountant = Accountant()

                def note(moment: int, accountant: Accountant = accountant, seen: dict[int, int] = seen) -> None:
                    seen[moment] = accountant.made_bytes

                with accountant, executor.hooks():
                    step(network, model, seed)
                done = executor.finish_step(accountant.peak_bytes)
                assert same_bits(gradients(model), expected[seed]), (rule, seed)
                assert (done.mismatches, done.on_demand, done.kept, done.failed_recipes) == (0, 0, 0, ())
                assert accountant.peak_bytes == live.peak
                over = {
                    moment: accountant.base_bytes + nbytes - int(live.at[moment])
                    for moment, nbytes in seen.items()
                    if moment not in busy
                }
                assert not any(over.values()), over
                assert all(accountant.base_bytes + seen[moment] <= live.at[moment] for moment in seen)
        assert all(torch.equal(value, end[key]) for key, value in model.state_dict().items()), rule
