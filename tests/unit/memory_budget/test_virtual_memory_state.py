"""Optimizer state on the host: budgets that the state alone would break, every bit as without, and all of it undone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.raising import raises
from tests.unit.memory_budget.virtual_loops import Trained, accumulating, assert_equal, plain, train
from torch import nn

import trimaran
from trimaran.base.errors import InfeasibleError
from trimaran.memory_budget.loop import Updates

Make = Callable[..., torch.optim.Optimizer]


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def floors(name: str, optimizer: Make) -> tuple[int, int]:
    """The least that plans can reach, with the state on the device and on the host [bytes]."""
    found = []
    for place in ("device", "host"):
        report = train(name, accumulating(1, 4), budget="1GiB", optimizer=optimizer, optimizer_state=place).report
        assert report is not None
        assert report.minimum_memory_bytes is not None
        found.append(report.minimum_memory_bytes)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("name", "optimizer", "phase"),
    [
        pytest.param("gpt2", torch.optim.Adam, "run", marks=pytest.mark.sweep),
        ("gpt2", momentum, "run"),
        ("vgg16", momentum, "keep"),
    ],
)
def test_a_budget_between_the_floors_trains_alike(name: str, optimizer: Make, phase: str) -> None:
    """Parameters outweigh the activations of vgg16: without the state, all of it fits."""
    with_state, without = floors(name, optimizer)
    assert without < with_state
    budget = (with_state + without) // 2
    ours: Trained = train(name, plain(), budget=budget, optimizer=optimizer, account=True, limit_s=0.5)
    assert_equal(ours, train(name, plain(), optimizer=optimizer))
    report = ours.report
    assert report is not None
    assert report.phase == phase
    assert report.state_host_bytes > 0
    assert report.measured_peak_bytes is not None
    assert report.measured_peak_bytes <= budget
    assert report.measured_peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.01)
    with pytest.raises(InfeasibleError):
        train(name, plain(), budget=budget, optimizer=optimizer, optimizer_state="device")


def small(make: Make = torch.optim.Adam) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    return model, make(model.parameters(), lr=0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(torch.ones(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()  # type: ignore[no-any-return]


def test_everything_is_as_it_was_after_the_context() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("1GiB", optimizer_state="host") as memory:
        inside = [step(model, optimizer) for _ in range(4)]
        assert "step" in vars(optimizer)
        on_host = memory.report().state_host_bytes
    assert "step" not in vars(optimizer)
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    assert on_host >= 2 * sum(moment.nbytes for moment in moments)
    assert all(moment.untyped_storage().resizable() for moment in moments)
    after = [step(model, optimizer) for _ in range(2)]
    model, optimizer = small()
    assert inside + after == [step(model, optimizer) for _ in range(6)]


def test_an_exception_brings_the_state_back() -> None:
    model, optimizer = small()

    def stop() -> None:
        for _ in range(3):
            step(model, optimizer)
        raise KeyError("the loop stops")

    with pytest.raises(KeyError), trimaran.virtual_memory("1GiB", optimizer_state="host"):
        stop()
    assert "step" not in vars(optimizer)


class TakesNorm(torch.optim.Adam):
    """Scales by the norm of all gradients."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            gradients = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            for gradient in gradients:
                gradient /= norm
        return super().step(closure)


def test_an_optimizer_that_cannot_be_taken_apart_is_said_with_the_floor() -> None:
    model, optimizer = small(TakesNorm)
    with trimaran.virtual_memory("300KiB", smallest=0) as memory:
        step(model, optimizer)
        with raises("memory-plan.below-minimum", InfeasibleError, match="TakesNorm"):
            step(model, optimizer)
    assert memory.report().state_host_bytes == 0


def test_a_budget_below_the_floor_without_the_state_is_refused() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("100KiB", smallest=0):
        step(model, optimizer)
        step(model, optimizer)  # after it, the state goes to the host
        with raises("memory-plan.below-minimum", InfeasibleError) as refusal:
            step(model, optimizer)
    assert "the optimizer's state on the host (about" not in refusal.value.message  # what is done is no way out
    assert "step" not in vars(optimizer)


def test_what_a_closure_made_again_is_confirmed_before_the_update() -> None:
    """A trainer may run forward and backward in the closure, after the step has begun."""
    order: list[str] = []
    parameter = torch.ones(1, requires_grad=True)

    def closure() -> torch.Tensor:
        order.append("closure")
        loss = parameter.sum()
        loss.backward()
        return loss

    updates = Updates(lambda _: order.append("ended"), lambda: order.append("confirmed"))
    updates.open()
    try:
        torch.optim.SGD([parameter], lr=1.0).step(closure)
        torch.optim.SGD([parameter], lr=1.0).step(closure=closure)
    finally:
        updates.close()
    assert order == ["confirmed", "closure", "confirmed", "ended"] * 2


def test_a_place_that_is_none_is_refused() -> None:
    with raises("virtual-memory.bad-optimizer-state", match="optimizer_state"):
        trimaran.virtual_memory("1GiB", optimizer_state="disk")
