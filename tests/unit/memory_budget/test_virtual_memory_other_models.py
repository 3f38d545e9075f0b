"""A model that changes under its plan: gradients are those of the plain loop bit for bit, or there is an error."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import Tensor, nn

import trimaran
from trimaran.base.errors import ExecutionError
from trimaran.graph.trace import record
from trimaran.measure.offload import CopyRates
from trimaran.memory_budget import device
from trimaran.memory_budget.recording import look_at

STEPS, CHANGED = 7, 4


class EvenClock:
    """Each reading is 50 µs after the one before, so that every operation takes as long as any other."""

    def __init__(self) -> None:
        self.read_us = itertools.count(step=50)

    def perf_counter(self) -> float:
        return next(self.read_us) * 1e-6


@pytest.fixture(autouse=True)
def _one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be made again is made again, as copies are slow; and what is chosen does not depend on the machine."""
    monkeypatch.setattr(record, "time", EvenClock())
    rates = CopyRates(to_host_bytes_per_s=1e5, to_device_bytes_per_s=1e5, latency_s=1e-3)
    monkeypatch.setitem(device._known, "cpu", rates)


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())


class Model(nn.Module):
    """A trunk, two heads, a frozen teacher, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.heads = block(), nn.ModuleList([block(), block()])
        self.order, self.head, self.margin, self.first = [0, 1], 0, 0.0, 0
        self.norm = nn.LayerNorm(64)
        self.teacher = block().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, x[:, :8]], 1)[:, self.first : self.first + 64].exp()
        for place in self.order:
            x = self.trunk[2 * place + 1](self.trunk[2 * place](x))
        x = self.norm(x)
        x = torch.where(x > 0, x, self.margin).sigmoid()
        with torch.no_grad():
            target = self.teacher(x)
        return self.heads[self.head](x * torch.exp(-target.square()))


def nothing(_model: Model) -> None:
    return


def swap_data(model: Model) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone() * 1.01


def assign(model: Model) -> None:
    model.load_state_dict({name: value.clone() * 1.01 for name, value in model.state_dict().items()}, assign=True)


def add_to_biases(model: Model) -> None:
    with torch.no_grad():
        for name, parameter in model.trunk.named_parameters():
            if name.endswith("bias"):
                parameter.add_(0.1)


def move_teacher(model: Model) -> None:
    for teacher, student in zip(model.teacher.parameters(), model.trunk.parameters(), strict=True):
        teacher.lerp_(student.detach(), 0.5)


def put(**values: Any) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        for name, value in values.items():
            setattr(model, name, value)

    return change


def eps(model: Model) -> None:
    model.norm.eps = 0.1


def freeze(model: Model) -> None:
    model.trunk.requires_grad_(False)


BEFORE = {
    "nothing": nothing,
    "another head": put(head=1),
    "layers in another order": put(order=[1, 0]),
    "a layer left out": put(order=[1]),
    "frozen": freeze,
    "weights replaced": swap_data,
    "weights assigned": assign,
    "a crop": put(first=3),
}
"""Seen in the forward: the plan is left in time."""

LATE: dict[str, tuple[Callable[[Model], None], Callable[[Model], None]]] = {
    "a margin": (put(margin=0.25), nothing),
    "an epsilon": (eps, nothing),
    "biases between forward and backward": (nothing, add_to_biases),
    "a teacher between forward and backward": (nothing, move_teacher),
}
"""Seen only where something is made again."""


def train(
    before: Callable[[Model], None], between: Callable[[Model], None] = nothing, *, virtual: bool, **options: Any
) -> tuple[list[Tensor], Any]:
    """Gradients of all steps; the model changes before a step, or between its forward and its backward."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(256, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    found = []
    context: Any = trimaran.virtual_memory("50%", smallest=0, **options) if virtual else contextlib.nullcontext()
    with context as memory:
        for step in range(STEPS):
            optimizer.zero_grad()
            if step == CHANGED:
                before(model)
            loss = model(x).square().mean()
            if step >= CHANGED:
                between(model)
            loss.backward()
            found += [torch.zeros(1) if one.grad is None else one.grad.clone() for one in model.parameters()]
            optimizer.step()
    return found, memory.report() if memory is not None else None


@pytest.mark.filterwarnings("ignore:virtual_memory. steps hold more:RuntimeWarning")
@pytest.mark.parametrize("what", BEFORE)
def test_another_model_of_the_same_look_has_its_own_gradients(what: str) -> None:
    expected, _ = train(BEFORE[what], virtual=False)
    found, report = train(BEFORE[what], virtual=True)
    assert all(map(torch.equal, expected, found))
    assert report.steps == STEPS
    if what == "nothing":
        assert any(one.decision == "recompute" for one in report.decisions), "the test tests nothing"
        assert not report.fallback_steps


@pytest.mark.parametrize("what", LATE)
def test_what_shows_only_when_it_is_made_again_is_an_error(what: str) -> None:
    with raises("recompute.other-bytes", ExecutionError, match="recompute=False"):
        train(*LATE[what], virtual=True)


@pytest.mark.parametrize("what", LATE)
def test_without_recomputation_it_is_right(what: str) -> None:
    expected, _ = train(*LATE[what], virtual=False)
    found, report = train(*LATE[what], virtual=True, recompute=False)
    assert all(map(torch.equal, expected, found))
    assert {one.decision for one in report.decisions} == {"offload"}


def test_models_of_one_class_have_plans_of_their_own() -> None:
    """One after the other, also where the second one gets the address of the first."""

    def run() -> list[Tensor]:
        found, x = [], torch.randn(256, 64)
        for _ in range(3):
            model = Model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(4):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                found += [one.grad.clone() for one in model.parameters() if one.grad is not None]
                optimizer.step()
        return found

    torch.manual_seed(0)
    expected = run()
    torch.manual_seed(0)
    with trimaran.virtual_memory("80%", smallest=0) as memory:
        found = run()
    assert all(map(torch.equal, expected, found))
    assert memory.report().fallback_steps == 0


def test_the_look_of_a_batch_names_its_model_and_what_is_trained() -> None:
    one, other, x = block(), block(), (torch.zeros(2, 64),)
    look = look_at(one, x, {})
    assert look == look_at(one, x, {}) != look_at(other, x, {})
    assert look_at(nn.Sequential(one), x, {}) == look_at(nn.Sequential(one), x, {})
    one[2].requires_grad_(False)
    assert look_at(one, x, {}) != look
