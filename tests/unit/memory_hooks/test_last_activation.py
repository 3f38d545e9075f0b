"""Seen in the wild: the last activation of the forward is offloaded, and fetched again at once."""

import torch
from tests.unit.memory_hooks.executing import executing, record
from tests.unit.memory_hooks.plans import plan_of, recipes_of
from torch import nn

from trimaran.program.memory import Decision


def test_what_the_plan_keeps_is_never_copied() -> None:
    """The plan says so for each storage; there is no rule behind it that moves more."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()), torch.randn(64, 32)
    recording = record(lambda: model(x).sum().backward(), model)
    trace = recording.trace
    last = max(trace.movable, key=lambda storage: storage.packs[0])
    rest = {
        storage.number: Decision.OFFLOAD
        for storage in trace.movable
        if storage.number != last.number and storage.outside_end <= storage.unpacks[0]
    }
    plan = plan_of(trace, rest, recipes_of(trace))
    with executing(recording, plan) as executor:
        with executor.hooks():
            model(x).sum().backward()
        done = executor.finish_step()
    assert last.nbytes == 4 * 64 * 32
    assert done.to_host_bytes == sum(trace.storages[number].nbytes for number in rest)
    assert done.on_demand == 0


def test_without_a_plan_what_the_loop_holds_is_not_copied() -> None:
    """It stays on the device anyway, and the loop may still write it where autograd does not see it."""
    x = torch.randn(64, 32, requires_grad=True)

    def step() -> torch.Tensor:
        y = x.exp()
        y.sum().backward()
        return y

    with executing(None) as executor:
        with executor.hooks():
            y = step()
        done = executor.finish_step()
        assert y.untyped_storage().nbytes() == 8192
        assert done.to_host_bytes == done.to_device_bytes == 0
