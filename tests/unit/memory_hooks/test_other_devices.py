"""A step with tensors on two devices: what is not on the engine's is left alone. Meta tensors stand for another one."""

import dataclasses

import torch
from tests.raising import raises
from tests.unit.memory_hooks.executing import executing, gradients, record, same_bits
from torch import nn

from trimaran.memory_hooks.arena import HostArena
from trimaran.memory_hooks.copies import HostEngine
from trimaran.memory_hooks.executor import MemoryExecutor
from trimaran.program.memory import KEEP_ALL


def test_a_recording_of_another_device_is_refused() -> None:
    """Copies would go to addresses that are none on the host."""
    recording = record(lambda: torch.ones(3, requires_grad=True).exp().sum().backward())
    assert recording.trace.device == "cpu"
    foreign = dataclasses.replace(recording, trace=dataclasses.replace(recording.trace, device="cuda"))
    engine = HostEngine()
    with HostArena(0) as arena, raises("memory-plan.other-device", device="cuda"):
        MemoryExecutor(foreign, KEEP_ALL, engine, arena)
    engine.close()


def test_without_a_plan_tensors_of_other_devices_stay() -> None:
    x = torch.ones(64, device="meta", requires_grad=True)
    with executing(None) as executor:
        executor.begin_forward()
        with executor.hooks():
            x.exp().sum().backward()
        assert executor.finish_step().to_host_bytes == 0


def test_a_step_whose_tensors_are_on_another_device_than_planned_leaves_the_plan() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), torch.ones(4, 8)
    recording = record(lambda: model(x).sum().backward(), model)
    elsewhere, there = nn.Sequential(nn.Linear(8, 16), nn.Tanh()).to("meta"), torch.ones(4, 8, device="meta")
    with executing(recording) as executor:
        executor.begin_forward()
        with executor.hooks():
            elsewhere(there).sum().backward()
        stats = executor.finish_step()
        assert (stats.mismatches, stats.to_host_bytes) == (1, 0)
        model.zero_grad()
        model(x).sum().backward()
        expected = gradients(model)
        model.zero_grad()
        executor.begin_forward()
        with executor.hooks():
            model(x).sum().backward()
        stats = executor.finish_step()
        assert stats.mismatches == 0
        assert stats.to_host_bytes > 0
        assert same_bits(gradients(model), expected)
