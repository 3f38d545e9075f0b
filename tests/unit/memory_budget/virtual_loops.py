"""Training loops as users write them, run with and without `virtual_memory` around them."""

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.reduced import REDUCED, Reduced
from torch import Tensor, nn

import trimaran
from trimaran.report.virtual_memory import MemoryReport

Loop = Callable[[nn.Module, torch.optim.Optimizer, Reduced, list[Tensor]], None]


@dataclass(slots=True, kw_only=True)
class Trained:
    """What a loop leaves: losses, parameters and buffers at the end, and the report."""

    losses: list[Tensor] = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)
    report: MemoryReport | None = None


def train(
    name: str,
    loop: Loop,
    *,
    budget: str | int | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    change: Callable[[nn.Module], Any] | None = None,
    **options: Any,
) -> Trained:
    """Run a loop on a network of reduced width; without a budget, plainly."""
    torch.manual_seed(0)
    network = dataclasses.replace(REDUCED[name], batch=larger(REDUCED[name]))
    model = network.model()
    if change is not None:
        changed = change(model)
        model = model if changed is None else changed
    stepper = optimizer(model.parameters(), lr=1e-2)
    trained = Trained()
    context: Any = contextlib.nullcontext()
    if budget is not None:
        context = trimaran.virtual_memory(budget, smallest=options.pop("smallest", 0), **options)
    with context as memory:
        loop(model, stepper, network, trained.losses)
    trained.state = {key: value.detach().clone() for key, value in model.state_dict().items()}
    trained.report = memory.report() if memory is not None else None
    return trained


def larger(network: Reduced, times: int = 4) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Batches that are larger, so that activations outweigh the parameters of narrow networks."""

    def make(seed: int) -> tuple[Tensor, Tensor]:
        batches = [network.batch(seed * times + part) for part in range(times)]
        return torch.cat([inputs for inputs, _ in batches]), torch.cat([target for _, target in batches])

    return make


def assert_equal(one: Trained, other: Trained) -> None:
    """The same losses and the same state, bit for bit."""
    assert [loss.item() for loss in one.losses] == [loss.item() for loss in other.losses]
    assert one.state.keys() == other.state.keys()
    for key, value in one.state.items():
        assert torch.equal(value, other.state[key]), key


def plain(steps: int = 6) -> Loop:
    """Forward, backward, update."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, network: Reduced, losses: list[Tensor]) -> None:
        for seed in range(steps):
            inputs, target = network.batch(seed)
            torch.manual_seed(seed)
            optimizer.zero_grad()
            loss = network.loss(model(inputs), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

    return loop


def accumulating(flights: int, steps: int = 5) -> Loop:
    """Several forwards and backwards before an update."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, network: Reduced, losses: list[Tensor]) -> None:
        for step in range(steps):
            for flight in range(flights):
                inputs, target = network.batch(step * flights + flight)
                loss = network.loss(model(inputs), target) / flights
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()

    return loop


def autocast(steps: int = 6) -> Loop:
    """Forward and loss in bfloat16 where torch thinks it right."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, network: Reduced, losses: list[Tensor]) -> None:
        for seed in range(steps):
            inputs, target = network.batch(seed)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = network.loss(model(inputs), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())

    return loop
