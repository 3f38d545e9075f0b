"""Seen in the wild: weights are offloaded every step, as views that are no `nn.Parameter`, or as casts."""

import torch
from tests.unit.memory_hooks.executing import executing, gradients, record, same_bits
from tests.unit.memory_hooks.plans import RECOMPUTE, plan_by_rule
from torch import nn

from trimaran.graph.trace.types import Role
from trimaran.program.memory import Decision

ROWS = 8
WEIGHT_BYTES = 4 * 64 * 64


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def test_a_weight_that_is_saved_as_a_view_stays() -> None:
    model, x = network(), torch.randn(ROWS, 64)

    def step() -> None:
        model(x).sum().backward()

    recording = record(step, model)
    weights = {s.number for s in recording.trace.storages if s.role == Role.PARAMETER and s.packs}
    assert weights
    for recorded in (recording, None):
        with executing(recorded, keep=model.parameters()) as executor:
            with executor.hooks():
                step()
            done = executor.finish_step()
        assert 0 < done.to_host_bytes < WEIGHT_BYTES, "activations are 2 kB each, a weight is 16 kB"


def test_casts_of_weights_are_made_again_from_the_weight() -> None:
    """Under bf16 autocast each weight is saved as a cast; recomputing them copies nothing."""
    model, x = network(), torch.randn(ROWS, 64)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().sum()
        loss.backward()

    step()
    expected = gradients(model)
    model.zero_grad()
    recording = record(step, model)
    plan = plan_by_rule(recording.trace, RECOMPUTE, smallest_bytes=WEIGHT_BYTES // 2)
    casts = [number for number in plan.moved if recording.trace.storages[number].nbytes == WEIGHT_BYTES // 2]
    assert casts
    assert all(plan.of(number) == Decision.RECOMPUTE for number in casts)
    model.zero_grad()
    with executing(recording, plan) as executor:
        with executor.hooks():
            step()
        done = executor.finish_step()
    assert same_bits(gradients(model), expected)
    assert done.recomputations >= len(casts)
    assert done.to_host_bytes == 0
