"""Loops that do what few do: copy the model meanwhile, run scripts, take gradients twice, change the batch for good."""

import contextlib
import copy
import io
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import trimaran
from trimaran.graph.trace.record import Recorder
from trimaran.memory_budget.loop import OUTRUN
from trimaran.memory_hooks.accountant import Accountant
from trimaran.report.virtual_memory import MemoryReport

Step = Callable[[int, nn.Module, Tensor], list[Tensor]]


def network(layers: int = 6, width: int = 64) -> nn.Sequential:
    return nn.Sequential(*[part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())])


def trained(step: Step, *, budget: str | int | None, steps: int = 7, **options: Any) -> tuple[list[Tensor], Any]:
    """What the steps give, all parameters at the end, and the report."""
    torch.manual_seed(0)
    model, batch = network(), torch.randn(256, 64)
    context: Any = contextlib.nullcontext()
    if budget is not None:
        context = trimaran.virtual_memory(budget, smallest=0, optimizer_state="device", **options)
    seen: list[Tensor] = []
    with context as memory:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(steps):
            optimizer.zero_grad()
            seen += [one.detach().clone() for one in step(number, model, batch)]
            optimizer.step()
    return [*seen, *(one.detach() for one in model.parameters())], memory.report() if memory is not None else None


def assert_trains_alike(step: Step, *, budget: str | int = "60%", **options: Any) -> MemoryReport:
    plain, _ = trained(step, budget=None, steps=options.get("steps", 7))
    virtual, report = trained(step, budget=budget, **options)
    assert len(plain) == len(virtual)
    assert all(torch.equal(one, other) for one, other in zip(plain, virtual, strict=True))
    assert isinstance(report, MemoryReport)
    return report


def square(outputs: Tensor) -> list[Tensor]:
    loss = outputs.square().mean()
    loss.backward()
    return [loss]


def hooks_of(model: nn.Module) -> list[Any]:
    return [
        hook
        for module in model.modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    ]


def test_a_model_is_saved_and_copied_in_any_step() -> None:
    copies: list[nn.Module] = []

    def step(_: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
        outputs = model(batch)
        copies.append(copy.deepcopy(model))
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copies.append(torch.load(file, weights_only=False))
        return square(outputs)

    report = assert_trains_alike(step)
    assert report.plans == 1
    hooks = [hook for one in copies for hook in hooks_of(one)]
    assert hooks  # there were some to leave behind
    assert not [hook for hook in hooks if "trimaran" in type(getattr(hook, "__self__", hook)).__module__]
    batch = torch.ones(2, 64)
    assert all(torch.equal(one(batch), network_like(one)(batch)) for one in copies)


def network_like(model: nn.Module) -> nn.Module:
    """The same weights without any hooks."""
    plain = network()
    plain.load_state_dict(model.state_dict())
    return plain


def test_a_script_trains_alike() -> None:
    scripts: dict[int, Any] = {}

    def step(_: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
        script = scripts.setdefault(id(model), torch.jit.script(model))
        return square(script(batch))

    report = assert_trains_alike(step, budget="100%")  # a script saves on its own: little can be moved
    assert report.phase == "keep"


def test_forward_mode_trains_alike() -> None:
    def step(_: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
        with forward_ad.dual_level():
            dual = model(forward_ad.make_dual(batch, torch.ones_like(batch)))
            tangent = forward_ad.unpack_dual(dual).tangent
        return square(tangent)

    assert assert_trains_alike(step, budget="80%").plans == 1


def test_weights_that_are_no_leaves_train_alike() -> None:
    """An inner step of gradient descent; torch warned of a `.grad` that nobody had asked for."""

    def step(_: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
        weights = dict(model.named_parameters())
        inner = torch.func.functional_call(model, weights, (batch,)).square().mean()
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {name: one - 0.1 * two for (name, one), two in zip(weights.items(), gradients, strict=True)}
        return square(torch.func.functional_call(model, fast, (batch,)))

    assert_trains_alike(step, budget="80%")


def test_weights_that_are_gone_before_the_backward_are_no_source_of_recipes() -> None:
    """A bias is added and not saved; with noise on it, it ends with the forward. Without a host all is recomputed."""

    def step(_: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
        noisy = {name: one + 0.01 * torch.randn_like(one) for name, one in model.named_parameters()}
        outputs = torch.func.functional_call(model, noisy, (batch,))
        noisy.clear()
        return square(outputs)

    assert_trains_alike(step, budget="75%", host=0)


def test_hooks_around_the_loop_end_the_recording() -> None:
    torch.manual_seed(0)
    model, batch = network(), torch.randn(256, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            square(model(batch))
            optimizer.step()

    with trimaran.virtual_memory("60%", smallest=0, optimizer_state="device") as memory:
        with torch.autograd.graph.save_on_cpu():
            train(4)
        assert memory.report().recorded_steps == 0
        assert memory.report().steps >= 3
        assert any("hooks of saved tensors" in note for note in memory.report().notes)
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        train(5)
    assert memory.report().plans == 1
    assert memory.report().phase == "run"


def test_two_optimizers_for_one_forward_are_one_step() -> None:
    model, batch = network(), torch.randn(256, 64)
    optimizers = [torch.optim.SGD([one], lr=0.01) for one in model.parameters()]
    with trimaran.virtual_memory("60%", smallest=0, optimizer_state="device") as memory:
        for _ in range(5):
            square(model(batch))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert not {*memory.report().notes} - {OUTRUN}  # which a clock says


def test_what_runs_long_before_a_forward_is_not_recorded_for_ever() -> None:
    recorder = Recorder(hooks=False)
    recorder.start()
    recorder.wait(True)
    one = torch.ones(1)
    for _ in range(10_000):
        one.add_(1)
    assert recorder.tired
    for _ in range(10):
        one.add_(1)
    assert len(recorder.stop().trace.ops) == 10_000


def penalized(_: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
    """A penalty on the gradient of the inputs: a graph through a backward."""
    inputs = batch.clone().requires_grad_()
    loss = model(inputs).square().sum()
    (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
    penalty = (gradient.norm(dim=1) - 1).square().mean() + loss * 1e-3
    penalty.backward()
    return [penalty]


def test_a_graph_through_a_backward_counts_whole() -> None:
    report = assert_trains_alike(penalized, budget="1GiB", account=True)
    model, batch = network(), torch.randn(256, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Accountant() as accountant:
        for _ in range(2):
            optimizer.zero_grad()
            penalized(0, model, batch)
            optimizer.step()
    assert report.phase == "keep"
    assert report.keep_peak_bytes == pytest.approx(accountant.peak_bytes, rel=0.02)
    assert report.measured_peak_bytes == pytest.approx(accountant.peak_bytes, rel=0.02)


def test_flights_of_one_step_count_what_others_left() -> None:
    """Two gradients of the inputs, then one of the weights: the graphs before are gone, but not all that they made."""

    def step(_: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
        shift = torch.zeros_like(batch, requires_grad=True)
        for _ in range(2):
            loss = model(batch + shift).square().mean()
            (gradient,) = torch.autograd.grad(loss, shift)
            shift = (shift + 0.1 * gradient.sign()).detach().requires_grad_()
        return square(model(batch + shift))

    report = assert_trains_alike(step, budget="1GiB", account=True)
    assert report.phase == "keep"
    assert report.keep_peak_bytes == pytest.approx(report.measured_peak_bytes, rel=0.02)


@pytest.mark.parametrize("budget", ["800kB", "60%"])
def test_a_batch_too_large_for_any_plan_is_warned_of_and_runs_on_demand(budget: str) -> None:
    def step(number: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
        return square(model(batch if number < 4 else batch.repeat(8, 1)))

    with pytest.warns(RuntimeWarning, match="steps hold more than the budget"):
        report = assert_trains_alike(step, budget=budget, steps=8)
    assert not report.fits
    assert report.fallback_steps == 3  # one was recorded
    assert any("on demand" in note for note in report.notes)


@pytest.mark.parametrize("budget", ["300kB", "5%"])
def test_the_first_steps_still_say_that_a_budget_is_too_small(budget: str) -> None:
    """With the user's own lines alone: torch's and ours, between the loop and its refusal, say nothing."""
    with pytest.raises(trimaran.base.errors.InfeasibleError) as refused:
        trained(lambda _, model, batch: square(model(batch)), budget=budget)
    lines = traceback.extract_tb(refused.value.__traceback__)
    assert lines
    assert all(Path(line.filename).is_relative_to(Path(__file__).parents[2]) for line in lines)


def test_passes_that_begin_alike_and_go_on_differently_train_alike() -> None:
    """Every third step runs the model twice: under the plan of the others, storages are moved on demand."""

    def step(number: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
        return square(model(batch) if number % 3 < 2 else model(model(batch)))

    report = assert_trains_alike(step, budget="75%", steps=24)
    assert report.plans == 1
    assert 0 < report.fallback_steps <= 8


@pytest.mark.parametrize("transform", ["grad", "vjp", "hessian", "later"])
def test_transforms_that_allow_no_hooks_train_alike(transform: str) -> None:
    def step(number: int, model: nn.Module, batch: Tensor) -> list[Tensor]:
        hidden = model(batch)
        if transform == "grad":
            each = torch.func.vmap(torch.func.grad(lambda one: model(one).square().sum()))(hidden)
            return square(hidden + each)
        if transform == "vjp":
            outputs, pull = torch.func.vjp(lambda weight: (hidden @ weight).tanh(), model[0].weight)
            return square(outputs + pull(hidden)[0].mean().tanh())
        if transform == "hessian":
            return square(hidden + torch.func.hessian(lambda one: model(one).sum())(batch[0, :4].repeat(16))[0])
        losses = square(hidden)
        if number > 4:
            weights = {name: one.detach() for name, one in model.named_parameters()}
            given = torch.func.grad(lambda all_: torch.func.functional_call(model, all_, (batch,)).mean())(weights)
            for name, one in model.named_parameters():
                assert one.grad is not None
                one.grad += given[name]
        return losses

    assert_trains_alike(step, budget="80%", steps=8)
    torch.func.grad(torch.sum)(torch.ones(2))


def test_calls_that_refuse_hooks_of_others_say_why() -> None:
    with (
        pytest.raises(RuntimeError) as caught,
        torch.autograd.graph.save_on_cpu(),
        trimaran.virtual_memory("60%"),
    ):
        torch.func.grad(torch.sum)(torch.ones(2))
    assert any("hooks of saved tensors" in note for note in caught.value.__notes__)
