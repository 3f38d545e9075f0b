"""Seen in the wild: filters by type skip pool indices, masks and the reserve of recurrent layers."""

import pytest
import torch
from tests.unit.memory_hooks.executing import executing, gradients, random_delays, record, same_bits
from tests.unit.memory_hooks.plans import MIXED, OFFLOAD, plan_by_rule
from torch import nn


class Kinds(nn.Module):
    """Saves int64 pool indices, boolean masks, a recurrent layer's uint8 or float reserve, bf16 and fp64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.lstm = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.conv(x), 2)
        x = x.masked_fill(x > 1, 0.5)
        x = torch.where(x > 0, x, x * 0.1)
        x, _ = self.lstm(x.flatten(0, 1).reshape(-1, 4, 16))
        return x.to(torch.bfloat16).exp().double().sin().sum()


@pytest.mark.parametrize("rule", [OFFLOAD, MIXED])
def test_every_type_is_moved_by_its_bytes(rule: str) -> None:
    model, x = Kinds(), torch.randn(2, 3, 16, 16)
    model(x).backward()
    expected = gradients(model)
    model.zero_grad()
    recording = record(lambda: model(x).backward(), model)
    types = {tick.view.dtype for tick in recording.trace.packs}
    assert {"int64", "bool", "float32", "bfloat16", "float64"} <= types
    with executing(recording, rule=rule, delay=random_delays(0)) as executor:
        model.zero_grad()
        with executor.hooks():
            model(x).backward()
        done = executor.finish_step()
        assert same_bits(gradients(model), expected)
    plan = plan_by_rule(recording.trace, OFFLOAD)
    moved = {tick.view.dtype for tick in recording.trace.packs if tick.storage in plan.moved}
    assert {"int64", "bool", "float32"} <= moved
    assert done.mismatches == 0
    assert done.to_host_bytes > 0
    if rule == OFFLOAD:
        assert done.to_host_bytes <= sum(recording.trace.storages[number].nbytes for number in plan.moved)
