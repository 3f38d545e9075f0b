"""The life of the context: what it refuses, what it reports, and that it leaves nothing behind."""

import copy
import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.raising import raises
from tests.unit.memory_budget.virtual_loops import plain, train
from torch import Tensor, nn
from torch._C import _autograd
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import trimaran
from trimaran.base.errors import ExecutionError, InfeasibleError, InputError
from trimaran.memory_budget.options import parse_budget
from trimaran.memory_hooks.arena import HostArena


def traces() -> tuple[Any, ...]:
    """Everything that a context could leave in torch and in the process."""
    return (
        _autograd._top_saved_tensors_default_hooks(False),
        tuple(_get_current_dispatch_mode_stack()),
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
        len(nn.modules.module._global_forward_pre_hooks),
        len(nn.modules.module._global_forward_hooks),
        sorted(thread.name for thread in threading.enumerate()),
    )


def count_arenas() -> int:
    return sum(type(value) is HostArena for value in gc.get_objects())


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = traces()
    yield
    assert traces() == before


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    hidden = [part for _ in range(5) for part in (nn.Linear(64, 64), nn.GELU())]
    model = nn.Sequential(*hidden, nn.Linear(64, 8))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int = 512) -> Tensor:
    optimizer.zero_grad()
    loss = model(torch.ones(batch, 64)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("budget", [0, -1, "0%", "101%", "12", "12 apples", True, 1.5, None, ""])
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    with pytest.raises(InputError):
        trimaran.virtual_memory(budget)


def test_a_budget_is_a_size_a_number_or_a_share() -> None:
    assert parse_budget("12GiB").nbytes == 12 * 2**30
    assert parse_budget(1_000_000).nbytes == 1_000_000
    assert parse_budget("50%").resolve(1001) == 500


@pytest.mark.parametrize("options", [{"on_violation": "cry"}, {"limit_s": 0}, {"host": "much"}, {"smallest": -1}])
def test_an_option_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        trimaran.virtual_memory("1GiB", **options)


def test_contexts_do_not_nest() -> None:
    with trimaran.virtual_memory("1GiB"), raises("virtual-memory.nested"):
        trimaran.virtual_memory("1GiB").__enter__()


def test_a_context_is_entered_once() -> None:
    memory = trimaran.virtual_memory("1GiB")
    with memory:
        pass
    with raises("virtual-memory.entered-before"), memory:
        pass


def test_there_is_no_report_before_the_context_is_entered() -> None:
    with raises("virtual-memory.not-entered", ExecutionError):
        trimaran.virtual_memory("1GiB").report()


def test_a_context_is_left_in_its_own_thread() -> None:
    errors: list[ExecutionError] = []

    def leave() -> None:
        try:
            memory.__exit__(None, None, None)
        except ExecutionError as error:
            errors.append(error)

    with trimaran.virtual_memory("1GiB") as memory:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert errors[0].code == "virtual-memory.other-thread"


CASES = [(0, "1GiB"), (3, "60%")]
FURTHER = [case for case in itertools.product(range(5), ("1GiB", "60%")) if case not in CASES]


@pytest.mark.parametrize(
    ("steps", "budget"),
    [*CASES, *(pytest.param(steps, budget, marks=pytest.mark.sweep) for steps, budget in FURTHER)],
)
def test_an_exception_in_the_loop_leaves_nothing_behind(steps: int, budget: str) -> None:
    """In each phase, in the middle of a forward."""
    model, optimizer = small()

    def forward_and_stop() -> None:
        for _ in range(steps):
            step(model, optimizer)
        _ = model(torch.ones(512, 64))
        raise KeyError("the loop stops")

    # Those of earlier tests that nobody has collected yet.
    gc.collect()
    arenas = count_arenas()
    with pytest.raises(KeyError), trimaran.virtual_memory(budget, smallest=0):
        forward_and_stop()
    assert not model._forward_pre_hooks
    gc.collect()
    assert count_arenas() == arenas


def test_a_budget_below_the_floor_is_refused_at_the_end_of_a_recorded_step() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("300KiB", smallest=0) as memory:
        step(model, optimizer)
        with raises("memory-plan.below-minimum", InfeasibleError) as caught:
            step(model, optimizer)
    assert caught.value.figures["budget_bytes"] == 300 * 1024
    assert memory.report().recorded_steps == 2


def test_what_fits_is_left_to_autograd() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("1GiB") as memory:
        for _ in range(4):
            step(model, optimizer)
        report = memory.report()
        assert _autograd._top_saved_tensors_default_hooks(False) is None
    assert report.fits
    assert report.phase == "keep"
    assert report.recorded_steps == 2
    assert report.steps == 4


def test_a_larger_batch_is_noticed_and_planned_for() -> None:
    """A batch of 256 fits in 1.3 MiB, one of 512 does not."""
    model, optimizer = small()
    with trimaran.virtual_memory("1300KiB", smallest=0) as memory:
        for _ in range(4):
            step(model, optimizer, 256)
        assert memory.report().phase == "keep"
        for _ in range(4):
            step(model, optimizer, 512)
        report = memory.report()
    assert report.plans == 1
    assert report.recorded_steps == 3
    assert report.keep_peak_bytes is not None
    assert report.keep_peak_bytes > 1300 * 1024


def test_a_smaller_batch_is_not_recorded() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("1GiB") as memory:
        for batch in (128, 128, 128, 100, 7):
            step(model, optimizer, batch)
    assert memory.report().recorded_steps == 2


def test_plans_are_few() -> None:
    """More batches than plans: those used last stay."""
    model, optimizer = small()
    with trimaran.virtual_memory("1500KiB", smallest=0) as memory:
        for batch in range(512, 528):
            step(model, optimizer, batch)
    assert memory.report().plans <= 8


def test_evaluation_without_gradients_is_not_a_step() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("60%", smallest=0) as memory:
        for _ in range(5):
            step(model, optimizer)
            with torch.no_grad():
                model.eval()
                model(torch.ones(256, 64))
                model.train()
    report = memory.report()
    assert report.steps == 5
    assert report.fallback_steps == 0


def test_a_copy_of_the_model_that_is_made_inside_is_free_of_the_context() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("1GiB"):
        for _ in range(3):
            step(model, optimizer)
        twin = copy.deepcopy(model)
    assert torch.equal(twin(torch.ones(2, 64)), model(torch.ones(2, 64)))
    for hook in twin._forward_pre_hooks.values():
        assert hook not in model._forward_pre_hooks.values()
        assert hook(twin, (), {}) is None


def test_a_loop_without_an_optimizer_is_planned() -> None:
    model, _ = small()
    with trimaran.virtual_memory("60%", smallest=0) as memory:
        for _ in range(6):
            model(torch.ones(512, 64)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    report = memory.report()
    assert report.plans == 1
    assert report.fallback_steps == 0


def test_a_loop_without_a_module_is_planned() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(6)]
    optimizer = torch.optim.SGD(weights, lr=0.01)

    def forward() -> Tensor:
        x = torch.ones(512, 64)
        for weight in weights:
            x = (x @ weight).tanh()
        return x.square().mean()

    with trimaran.virtual_memory("60%", smallest=0) as memory:
        for _ in range(6):
            optimizer.zero_grad()
            forward().backward()
            optimizer.step()
    report = memory.report()
    assert report.plans == 1
    assert report.fallback_steps == 0


def test_the_report_fits_in_80_columns() -> None:
    report = train("resnet50", plain(5), budget="70%").report
    assert report is not None
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("offload" in line or "recompute" in line for line in lines)


def test_a_graph_of_a_step_that_is_kept_outlives_the_context() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("1GiB"):
        for _ in range(3):
            step(model, optimizer)
        loss = model(torch.ones(512, 64)).square().mean()
    loss.backward()
    assert model[0].weight.grad is not None  # type: ignore[index]


def test_a_graph_of_a_recorded_step_outlives_the_context() -> None:
    model, _ = small()
    inside = torch.ones(512, 64)
    model(inside).square().mean().backward()
    expected = model[0].weight.grad.clone()  # type: ignore[index, union-attr, operator]
    model.zero_grad()
    with trimaran.virtual_memory("1GiB"):
        loss = model(inside).square().mean()
    loss.backward()
    assert torch.equal(model[0].weight.grad, expected)  # type: ignore[index, arg-type]


def test_a_step_over_the_budget_is_noted_and_planned_again() -> None:
    """A second forward in the step, without gradients and so without ticks, holds more than was recorded."""
    model, optimizer = small()
    with trimaran.virtual_memory("1MiB", smallest=0, account=True) as memory:
        for index in range(6):
            step(model, optimizer)
            if index == 4:
                with torch.no_grad():
                    model(torch.ones(4096, 64))
    notes = " ".join(memory.report().notes)
    assert "held more than the budget" in notes
    assert "planned again with" in notes or "planning again" in notes


def test_enforcing_without_a_gpu_is_noted() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("1GiB", enforce=True) as memory:
        for _ in range(3):
            step(model, optimizer)
    assert any("enforce" in note for note in memory.report().notes)


def test_a_loop_inside_a_mode_of_its_own_is_planned() -> None:
    """The mode is entered in each step and left after the update, so it lies above ours when the step ends."""

    class Counting(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    model, optimizer = small()
    with trimaran.virtual_memory("60%", smallest=0) as memory:
        for _ in range(5):
            with Counting():
                step(model, optimizer)
    assert memory.report().phase == "run"
    assert Counting.calls > 100


def test_batches_no_larger_than_a_planned_one_run_on_demand_first() -> None:
    model, optimizer = small()
    with trimaran.virtual_memory("60%", smallest=0) as memory:
        for batch in (512, 512, 512, 400):
            step(model, optimizer, batch)
        assert (memory.report().recorded_steps, memory.report().fallback_steps) == (2, 1)
        step(model, optimizer, 400)
        assert memory.report().recorded_steps == 3
        step(model, optimizer, 400)
        assert memory.report().fallback_steps == 1


def test_hooks_that_others_left_above_stay() -> None:
    def pack(tensor: Tensor) -> Tensor:
        return tensor

    with trimaran.virtual_memory("1GiB"):
        _autograd._push_saved_tensors_default_hooks(pack, pack)
    top = _autograd._top_saved_tensors_default_hooks(False)
    _autograd._pop_saved_tensors_default_hooks()
    assert top == (pack, pack)


def test_it_is_refused_in_a_rehearsal_which_has_no_device_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_REHEARSAL", "1")
    with raises("virtual-memory.rehearsed"), trimaran.virtual_memory("50%"):
        pass
