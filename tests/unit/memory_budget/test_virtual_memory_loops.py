"""Loops as users write them: with `virtual_memory` around them, every bit is as without, and the peak is planned."""

import contextlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.raising import raises
from tests.reduced import Reduced
from tests.representative import each
from tests.unit.memory_budget.virtual_loops import Loop, Trained, accumulating, assert_equal, autocast, plain, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trimaran
from trimaran.base.errors import InfeasibleError

NETWORKS = {"lstm": "75%", "resnet50": "75%", "gpt2": "60%", "googlenet": "75%", "densenet121": "60%"}


def assert_planned(trained: Trained, *, phase: str = "run") -> None:
    """A plan moved storages, no step left it, and its peak is within the budget."""
    report = trained.report
    assert report is not None
    assert report.phase == phase
    assert report.fallback_steps == 0
    assert report.plans >= 1
    assert report.decisions
    assert report.predicted_peak_bytes <= report.budget_bytes  # type: ignore[operator]


@pytest.mark.parametrize("name", each(NETWORKS, "lstm", "resnet50", "gpt2"))
def test_an_unmodified_loop_trains_alike(name: str) -> None:
    trained = train(name, plain(), budget=NETWORKS[name])
    assert_planned(trained)
    assert_equal(trained, train(name, plain()))


@pytest.mark.parametrize(("name", "budget"), [("gpt2", "85%"), ("densenet121", "70%")])
def test_recomputing_alone_trains_alike(name: str, budget: str) -> None:
    """Without room on the host nothing can be offloaded; what recipes make is compared once, then used."""
    trained = train(name, plain(), budget=budget, host=0, limit_s=0.5)
    assert_planned(trained)
    assert trained.report is not None
    assert {one.decision for one in trained.report.decisions} == {"recompute"}
    assert trained.report.to_host_bytes == 0
    assert_equal(trained, train(name, plain()))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_any_optimizer_trains_alike(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    trained = train("gpt2", plain(), budget="70%", optimizer=optimizer)
    assert_planned(trained)
    assert_equal(trained, train("gpt2", plain(), optimizer=optimizer))


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_autocast_trains_alike(name: str) -> None:
    trained = train(name, autocast(), budget="80%")
    assert_planned(trained)
    assert_equal(trained, train(name, autocast()))


@pytest.mark.parametrize("flights", [3])
def test_gradient_accumulation_trains_alike(flights: int) -> None:
    trained = train("gpt2", accumulating(flights), budget="70%")
    assert_planned(trained)
    assert_equal(trained, train("gpt2", accumulating(flights)))


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.block = block
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_train_alike(reentrant: bool) -> None:
    def change(model: nn.Module) -> None:
        model.h[1] = Checkpointed(model.h[1], reentrant)  # type: ignore[index, operator]
        model.h[2] = Checkpointed(model.h[2], reentrant)  # type: ignore[index, operator]

    trained = train("gpt2", plain(), budget="75%", change=change)
    assert_planned(trained)
    assert_equal(trained, train("gpt2", plain(), change=change))


class OffloadedByItsUser(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return self.block(x)  # type: ignore[no-any-return]


def test_hooks_of_the_user_inside_train_alike() -> None:
    def change(model: nn.Module) -> None:
        model.h[1] = OffloadedByItsUser(model.h[1])  # type: ignore[index, operator]

    trained = train("gpt2", plain(), budget="75%", change=change)
    assert_planned(trained)
    assert_equal(trained, train("gpt2", plain(), change=change))


def several_lengths(model: nn.Module, optimizer: torch.optim.Optimizer, network: Reduced, losses: list[Tensor]) -> None:
    for seed, length in enumerate([32, 32, 32, 24, 32, 24, 24, 17, 32, 24]):
        inputs, target = network.batch(seed)
        loss = network.loss(model(inputs[:, :length]), target[:, :length])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())


def test_batches_of_several_lengths_train_alike() -> None:
    trained = train("gpt2", several_lengths, budget="60%")
    assert_equal(trained, train("gpt2", several_lengths))
    assert trained.report is not None
    assert trained.report.plans >= 1
    assert trained.report.phase == "run"


def two_losses(model: nn.Module, optimizer: torch.optim.Optimizer, network: Reduced, losses: list[Tensor]) -> None:
    for seed in range(5):
        inputs, target = network.batch(seed)
        scores = model(inputs)
        network.loss(scores, target).backward(retain_graph=True)  # type: ignore[no-untyped-call]
        loss = scores.square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())


def test_a_graph_that_is_walked_twice_leaves_nothing_to_move() -> None:
    """All that it saved is there again after the first walk, and stays for the second."""
    with raises("memory-plan.below-minimum", InfeasibleError):
        train("gpt2", two_losses, budget="97%")
    assert_equal(train("gpt2", two_losses, budget="100%"), train("gpt2", two_losses))


def train_two(budget: str | None) -> tuple[list[float], Any]:
    """A generator and its critic take turns; both steps begin with the generator."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 32))
    critic = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    one = torch.optim.Adam(critic.parameters(), lr=1e-3)
    other = torch.optim.Adam(generator.parameters(), lr=1e-3)
    losses = []
    context: Any = contextlib.nullcontext() if budget is None else trimaran.virtual_memory(budget, smallest=0)
    with context as memory:
        for _ in range(8):
            made = generator(torch.randn(512, 16))
            loss = critic(made.detach()).mean() - critic(torch.randn(512, 32)).mean()
            one.zero_grad()
            loss.backward()
            one.step()
            losses.append(loss.item())
            loss = -critic(generator(torch.randn(512, 16))).mean()
            other.zero_grad()
            loss.backward()
            other.step()
            losses.append(loss.item())
        report = None if memory is None else memory.report()
    return losses, report


def test_two_optimizers_that_take_turns_train_alike() -> None:
    losses, report = train_two("80%")
    assert losses == train_two(None)[0]
    assert report.fallback_steps == 0
    assert report.plans >= 1


def updating_in_the_backward(
    model: nn.Module, _: torch.optim.Optimizer, network: Reduced, losses: list[Tensor]
) -> None:
    """Each parameter has an optimizer, which steps as soon as its gradient is there."""
    steppers = {parameter: torch.optim.SGD([parameter], lr=1e-2) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        steppers[parameter].step()  # type: ignore[index]
        steppers[parameter].zero_grad()  # type: ignore[index]

    handles = [parameter.register_post_accumulate_grad_hook(step) for parameter in model.parameters()]
    for seed in range(6):
        inputs, target = network.batch(seed)
        loss = network.loss(model(inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    for handle in handles:
        handle.remove()


def searching_along_a_line(model: nn.Module, _: torch.optim.Optimizer, network: Reduced, losses: list[Tensor]) -> None:
    """An optimizer that calls for forwards and backwards itself."""
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    inputs, target = network.batch(0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = network.loss(model(inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
        return loss

    for _step in range(4):
        optimizer.step(closure)  # type: ignore[arg-type]


@pytest.mark.parametrize("loop", [updating_in_the_backward, searching_along_a_line])
def test_unusual_updates_train_alike(loop: Loop) -> None:
    trained = train("gpt2", loop, budget="85%")
    assert_equal(trained, train("gpt2", loop))


def skipping(model: nn.Module, optimizer: torch.optim.Optimizer, network: Reduced, losses: list[Tensor]) -> None:
    """Every third graph is dropped."""
    for seed in range(9):
        inputs, target = network.batch(seed)
        loss = network.loss(model(inputs), target)
        losses.append(loss.detach())
        if seed % 3 == 2:
            continue
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def test_a_graph_that_is_dropped_trains_alike() -> None:
    trained = train("gpt2", skipping, budget="75%")
    assert_equal(trained, train("gpt2", skipping))


COMPILER = "inductor" if shutil.which("g++") else "aot_eager"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param(COMPILER, marks=[pytest.mark.sweep, pytest.mark.timeout(600)])]
)
def test_compiled_blocks_train_alike(backend: str) -> None:
    """What a compiled block does inside is not seen; what it saves can be offloaded."""

    def change(model: nn.Module) -> None:
        torch._dynamo.reset()
        for block in model.h:  # type: ignore[union-attr]
            block.compile(backend=backend)

    compiled = train("gpt2", plain(), change=change)
    trained = train("gpt2", plain(), budget="75%", change=change)
    assert_planned(trained)
    assert_equal(trained, compiled)


def changed_in_place(
    model: nn.Module, optimizer: torch.optim.Optimizer, network: Reduced, losses: list[Tensor]
) -> None:
    for seed in range(5):
        inputs, target = network.batch(seed)
        scores = model(inputs)
        loss = scores.exp()
        if seed == 4:
            loss += 1
        (loss.mean() + network.loss(scores, target)).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("budget", ["1GiB", "75%"])
def test_a_change_in_place_raises_what_autograd_raises(budget: str) -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train("gpt2", changed_in_place, budget=budget)
