"""Models that change a plain number from step to step: what takes it must not be made again with the old one."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import Tensor, nn

import trimaran
from trimaran.base.errors import ExecutionError
from trimaran.measure.offload import CopyRates
from trimaran.memory_budget import device
from trimaran.memory_budget.loop import StepFigures
from trimaran.memory_budget.options import VERIFY_EVERY
from trimaran.memory_budget.passes import PassStats
from trimaran.report.virtual_memory import MemoryReport

Use = Callable[[Tensor, float], Tensor]
"""What a model does with its number."""

KEPT_BY_NODES: dict[str, Use] = {
    "factor": lambda x, number: x * number,
    "divisor": lambda x, number: x / number,
    "power": lambda x, number: (x.square() + 1) ** number,
    "bounds": lambda x, number: x.clamp(-number, number),
    "slope": lambda x, number: nn.functional.leaky_relu(x, number / 10),
    "temperature": lambda x, number: (x / number).softmax(-1),
    "weight": lambda x, number: torch.lerp(x, x.sin(), number),
}


@pytest.fixture(autouse=True)
def _slow_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what can be made again is made again."""
    rates = CopyRates(to_host_bytes_per_s=1e4, to_device_bytes_per_s=1e4, latency_s=1.0)
    monkeypatch.setitem(device._known, "cpu", rates)


class Annealed(nn.Module):
    """Each layer takes the number, and makes nothing that is dear to make again."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.use = use
        self.number = 0.5

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.use(layer(x), self.number).tanh()
        return x


def train(
    use: Use, number: Callable[[int], float], steps: int, *, virtual: bool
) -> tuple[list[float], MemoryReport | None, list[bool]]:
    """Losses, the report, and whether a recipe was in use at each step."""
    torch.manual_seed(0)
    model = Annealed(use)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch, losses, recomputed = torch.randn(256, 32), [], []
    context: Any = trimaran.virtual_memory("85%", smallest=0) if virtual else contextlib.nullcontext()
    with context as memory:
        for step in range(steps):
            model.number = number(step)
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            decisions = memory.report().decisions if memory is not None else ()
            recomputed.append(any(one.decision == "recompute" for one in decisions))
        return losses, memory and memory.report(), recomputed


@pytest.mark.parametrize("name", KEPT_BY_NODES)
def test_a_number_that_nodes_keep_is_noticed_in_the_step_in_which_it_changes(name: str) -> None:
    """It stays until step 5, so that two recordings and a comparison of recipes know nothing of it."""
    use = KEPT_BY_NODES[name]

    def number(step: int) -> float:
        return 0.5 if step < 6 else 0.5 + step / 100

    plain, _, _ = train(use, number, 10, virtual=False)
    ours, report, recomputed = train(use, number, 10, virtual=True)
    assert recomputed[5]
    assert ours == plain
    assert report is not None
    assert report.fallback_steps == 0


@pytest.mark.parametrize("use", [*KEPT_BY_NODES.values(), lambda x, number: x + number])
def test_a_number_that_changes_in_each_step_is_soon_in_no_recipe(use: Use) -> None:
    def number(step: int) -> float:
        return 0.5 + step / 100

    plain, _, _ = train(use, number, 8, virtual=False)
    ours, report, _ = train(use, number, 8, virtual=True)
    assert ours == plain
    assert report is not None
    assert report.fallback_steps == 0


def test_a_number_that_shows_nowhere_is_found_by_the_bytes() -> None:
    with raises("recompute.other-bytes", ExecutionError):
        train(lambda x, number: x + number, lambda step: 0.5 if step < 6 else 0.7, 8, virtual=True)


def test_what_was_not_noticed_for_a_while_is_a_warning() -> None:
    tally = StepFigures()
    with pytest.warns(RuntimeWarning, match=f"gradients of up to {VERIFY_EVERY} steps"):
        tally.add(PassStats(planned=True, banned=("1.0 MiB of h.1 by aten.add.Tensor",), unnoticed=True))
    assert "aten.add" in tally.notes[0]


def test_recipes_are_compared_again_now_and_then() -> None:
    """A comparison needs the real bytes, which go to the host for it."""
    torch.manual_seed(0)
    model = Annealed(lambda x, number: x * number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    copied = []
    with trimaran.virtual_memory("85%", smallest=0) as memory:
        for _ in range(2 + VERIFY_EVERY):
            optimizer.zero_grad()
            model(torch.ones(256, 32)).square().mean().backward()
            optimizer.step()
            copied.append(memory.report().to_host_bytes)
    assert copied[-1] == copied[2] > copied[3]
    assert set(copied[3:-1]) == {copied[3]}
