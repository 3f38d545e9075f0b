"""Codecs as a decision of the plan: where coding is faster by the rates of the machine, exact or not as named."""

from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import Tensor, nn

import trimaran
from trimaran.base.errors import InputError
from trimaran.measure.offload import CopyRates
from trimaran.memory_budget import device
from trimaran.memory_budget.device import LoopDevice
from trimaran.program.memory import parse_codec

STEPS = 6


def slow_link(monkeypatch: pytest.MonkeyPatch, bytes_per_s: float) -> None:
    """The plan takes copies to be so slow; coding takes what it takes here."""
    rates = CopyRates(to_host_bytes_per_s=bytes_per_s, to_device_bytes_per_s=bytes_per_s, latency_s=0.0)
    monkeypatch.setitem(device._known, "cpu", rates)


def train(codec: str | None = None, *, recompute: bool = False, virtual: bool = True) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(512, 256)
    if not virtual:
        return steps(model, optimizer, x), None
    with trimaran.virtual_memory("80%", smallest=0, recompute=recompute, codec=codec) as memory:
        return steps(model, optimizer, x), memory.report()


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> list[Tensor]:
    found: list[Tensor] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        found += [one.grad.clone() for one in model.parameters() if one.grad is not None]
        optimizer.step()
    return found


def test_what_comes_after_a_relu_is_coded_over_a_slow_link_and_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """About half of the values are zero: nearly 2 times fewer bytes, and every bit of every gradient as without."""
    slow_link(monkeypatch, 20e6)
    plain, _ = train(virtual=False)
    found, report = train("sparse")
    assert all(map(torch.equal, plain, found))
    assert (report.phase, report.fallback_steps, report.codec) == ("run", 0, "sparse")
    assert 1.5 < report.coding_ratio < 2.2
    assert any("coded by sparse" in one.reason for one in report.decisions)
    assert "x fewer bytes" in str(report)


def test_over_a_fast_link_nothing_is_coded(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_link(monkeypatch, 1e12)
    _, report = train("sparse")
    assert report.to_host_bytes > 0
    assert report.coding_ratio is None
    assert "nothing was coded" in str(report)


def test_rounding_halves_the_bytes_and_moves_gradients_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_link(monkeypatch, 20e6)
    plain, _ = train(virtual=False)
    found, report = train("bf16")
    assert report.coding_ratio == pytest.approx(2.0)
    assert not all(map(torch.equal, plain, found))
    for one, other in zip(plain, found, strict=True):
        assert torch.linalg.vector_norm(one - other) <= 0.02 * torch.linalg.vector_norm(one)


def test_nothing_is_recomputed_from_what_was_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes compare what they make with what was there: it would not be the same bits."""
    slow_link(monkeypatch, 200e6)
    _, report = train("bf16", recompute=True)
    assert (report.phase, report.fallback_steps) == ("run", 0)


@pytest.mark.parametrize("codec", ["zip", "sparse:0.5", "bf16:3", "sparse:nan", ""])
def test_an_unknown_codec_is_refused(codec: str) -> None:
    with raises("codec.unknown", InputError):
        trimaran.virtual_memory("70%", codec=codec)


def test_a_codec_on_a_gpu_is_refused() -> None:
    with raises("virtual-memory.codec-on-gpu", InputError, match="trimaran memory --codec"):
        LoopDevice("cuda", 0, parse_codec("sparse"))
