"""Seen in the wild: a budget on what autograd saves is none on the peak of the step."""

import pytest
import torch
from tests.unit.memory_hooks.executing import executing, random_delays, record
from tests.unit.memory_hooks.plans import MIXED, OFFLOAD, RECOMPUTE, plan_by_rule
from torch import nn

from trimaran.memory_hooks.accountant import Accountant
from trimaran.simulator.memory import live_bytes


@pytest.mark.parametrize("rule", [OFFLOAD, RECOMPUTE, MIXED])
def test_the_peak_of_each_step_is_the_plans_whatever_the_copies_take(rule: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(5) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())))
    x = torch.randn(4, 8, 16, 16)

    def step() -> None:
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()

    step()
    recording = record(step, model)
    plan = plan_by_rule(recording.trace, rule)
    kept = live_bytes(recording.trace, plan_by_rule(recording.trace, rule, smallest_bytes=1 << 40)).peak
    planned = live_bytes(recording.trace, plan).peak
    for seed in range(3):
        options = {"predicted_peak_bytes": planned, "delay": random_delays(seed, 2e-3)}
        with executing(recording, plan, **options) as executor:
            with Accountant() as accountant, executor.hooks():
                step()
            done = executor.finish_step(accountant.peak_bytes)
        assert done.predicted_peak_bytes == done.accounted_peak_bytes == planned < kept


def test_the_accountant_counts_views_once_and_what_was_there_before_from_the_start() -> None:
    """10 kB there before and seen late, 4 kB made and gone before that, then 4 kB more: the peak is 14 kB."""
    before = torch.zeros(2500)
    with Accountant() as accountant:
        x = torch.zeros(1000)
        y = x.view(10, 100).t()
        del x, y
        total = before[:1000] + before[1000:2000]
        assert accountant.live_bytes == 14_000
        del total
        assert accountant.live_bytes == 10_000
    assert (accountant.base_bytes, accountant.peak_bytes) == (10_000, 14_000)


def test_the_accountant_follows_a_storage_that_is_resized() -> None:
    with Accountant() as accountant:
        x = torch.zeros(1000)
        x.resize_(2000)
        x.add_(1)
        assert accountant.live_bytes == 8_000
    assert accountant.peak_bytes == 8_000
