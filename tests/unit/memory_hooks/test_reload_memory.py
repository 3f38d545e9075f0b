"""Seen in the wild: memory for what comes back grows from step to step, and new streams bring new pools."""

import threading

import torch
from tests.unit.memory_hooks.executing import executing, record
from torch import nn

from trimaran.memory_hooks.accountant import Accountant
from trimaran.memory_hooks.copies import TO_DEVICE, TO_HOST


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())))


def test_no_step_needs_more_than_the_one_before() -> None:
    model, x = network(), torch.randn(64, 32)

    def step() -> None:
        model.zero_grad(set_to_none=False)
        model(x).sum().backward()

    recording = record(step, model)
    peaks, ends = [], []
    with executing(recording) as executor:
        for _ in range(5):
            with Accountant() as accountant, executor.hooks():
                step()
            peaks.append(accountant.peak_bytes)
            ends.append(accountant.made_bytes)
    assert len(set(peaks[1:])) == 1
    assert set(ends[1:]) == {0}


def test_an_engine_has_its_two_threads_and_no_more() -> None:
    model, x = network(), torch.randn(64, 32)

    def step() -> None:
        model(x).sum().backward()

    recording = record(step, model)
    before = threading.active_count()
    with executing(recording) as executor:
        for _ in range(3):
            with executor.hooks():
                step()
            names = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("trimaran-"))
            assert names == sorted([f"trimaran-{TO_HOST}_0", f"trimaran-{TO_DEVICE}_0"])
    assert threading.active_count() == before
