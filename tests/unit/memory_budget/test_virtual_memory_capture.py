"""While a CUDA graph is captured everything is kept, and no step is seen in what is packed and unpacked."""

import pytest
import torch
from torch import nn

from trimaran.memory_budget.loop import StepFigures
from trimaran.memory_budget.passes import PassStats
from trimaran.memory_budget.recording import HookPair
from trimaran.report.virtual_memory import MemoryReport


@pytest.mark.parametrize("capturing", [False, True])
def test_the_pair_keeps_what_is_packed_while_operations_are_captured(capturing: bool) -> None:
    packed = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    hooks = HookPair(lambda: capturing)
    hooks.work(pack, lambda tensor: tensor)
    hooks.push()
    try:
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4)
        model(x).sum().backward()
    finally:
        hooks.remove()
    assert bool(packed) is not capturing
    assert hooks.unpacked is not capturing
    assert model[0].weight.grad is not None


def test_the_peak_is_the_largest_of_the_steps_until_plans_change() -> None:
    """A verified step holds more than the plan says, as it compares; it does not count."""
    tally = StepFigures()
    for peak_bytes, verified in ((900, True), (500, False), (700, False), (600, False)):
        tally.add(PassStats(verified=verified))
        tally.end_step(recorded=False, peak_bytes=peak_bytes)
    assert tally.peak_bytes == 700
    tally.start_peak()
    tally.end_step(recorded=False, peak_bytes=300)
    assert tally.peak_bytes == 300


def test_where_streams_wait_the_report_has_no_stalls() -> None:
    on_gpu = str(MemoryReport(phase="run", device="cuda", stall_s=None))
    assert [line.split()[1] for line in on_gpu.splitlines() if "stalls" in line] == ["–"]
    assert "–" not in str(MemoryReport(phase="run", device="cpu", stall_s=0.0))
