"""Memory virtualization on a GPU: copy streams, page-locked memory, gradients and peaks under a plan."""

import copy
import time

import pytest
import torch
from tests.gpu.running import DEVICE
from tests.unit.runtime.memory.plans import MIXED, OFFLOAD, RECOMPUTE, plan_by_rule
from torch import nn

from trimaran.errors import InputError
from trimaran.graph.trace.record import Recorder
from trimaran.runtime.memory.accountant import Accountant
from trimaran.runtime.memory.arena import HostArena
from trimaran.runtime.memory.cuda import CudaEngine, page_lock
from trimaran.runtime.memory.executor import MemoryExecutor
from trimaran.runtime.memory.store import ArenaStore

pytestmark = pytest.mark.cuda_only

CAP_BYTES = 256 << 20


@pytest.fixture(autouse=True)
def _same_kernels_each_time():
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def network() -> nn.Module:
    torch.manual_seed(0)
    blocks = [
        layer
        for _ in range(4)
        for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(3, 1, 1))
    ]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks).to(DEVICE)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("rule", [OFFLOAD, RECOMPUTE, MIXED])
def test_gradients_are_those_of_plain_autograd_and_the_peak_is_lower(rule: str) -> None:
    model = network()
    x = torch.randn(8, 3, 96, 96, device=DEVICE)

    def step() -> None:
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()

    step()
    start = copy.deepcopy(model.state_dict())
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    plain_bytes = torch.cuda.max_memory_allocated()
    expected = gradients(model)
    model.load_state_dict(start)
    engine = CudaEngine(DEVICE)
    with HostArena(CAP_BYTES, lock=page_lock(DEVICE)) as arena:
        with Recorder(model, store=ArenaStore(engine, arena)) as recorder:
            step()
        plan = plan_by_rule(recorder.recording.trace, rule, smallest_bytes=1 << 16)
        executor = MemoryExecutor(recorder.recording, plan, engine, arena)
        for verify in (True, False, False):
            model.load_state_dict(start)
            executor.flight(verify=verify)
            with Accountant(DEVICE) as accountant, executor.hooks():
                step()
            done = executor.finish_step(accountant.peak_bytes)
            assert (done.mismatches, done.on_demand, done.failed_recipes) == (0, 0, ())
            assert all(map(torch.equal, gradients(model), expected))
        assert accountant.peak_bytes < plain_bytes
        assert done.to_host_bytes > 0 or done.recomputations > 0
        torch.cuda.synchronize()
        del executor
        engine.close()
        assert arena.use().used_bytes == 0


def test_a_copy_follows_what_was_issued_and_the_host_does_not_wait() -> None:
    """The compute stream is busy when both copies are asked for; the values are those behind the operations."""
    engine = CudaEngine(DEVICE, record=True)
    square = torch.ones(4096, 4096, device=DEVICE)
    value = torch.zeros(1 << 20, device=DEVICE)
    with HostArena(16 << 20, lock=page_lock(DEVICE)) as arena:
        torch.cuda.synchronize()
        origin_ns = time.perf_counter_ns()
        for _ in range(20):
            square @ square
        value.fill_(3.0)
        slot = arena.allocate(4 << 20)
        saving = engine.save(value.untyped_storage(), slot)
        assert not saving.done(), "the device should still be busy"
        saving.wait()
        value.fill_(5.0)
        back = engine.allocate(4 << 20)
        loading = engine.load(slot, back)
        loading.wait()
        restored = torch.empty(0, device=DEVICE).set_(back, 0, (1 << 20,))
        assert torch.equal(restored, torch.full_like(value, 3.0))
        spans = engine.take_spans(origin_ns)
        assert {span.stream for span in spans} >= {"d2h", "h2d"}
        assert all(span.start_s <= span.end_s for span in spans)
        engine.close()
        slot.free()


def test_memory_that_was_let_go_can_be_used_again_at_once() -> None:
    """Two hundred rounds of save, let go, take again and overwrite: whoever overtakes a copy spoils its values."""
    engine = CudaEngine(DEVICE)
    with HostArena(512 << 20, lock=page_lock(DEVICE)) as arena:
        slots = []
        for round_ in range(200):
            value = torch.full((1 << 18,), float(round_), device=DEVICE)
            slot = arena.allocate(1 << 20)
            engine.save(value.untyped_storage(), slot).wait()
            del value
            torch.full((1 << 18,), -1.0, device=DEVICE)
            slots.append(slot)
        for round_, slot in enumerate(slots):
            torch.full((1 << 18,), -2.0, device=DEVICE)
            back = engine.allocate(1 << 20)
            engine.load(slot, back).wait()
            restored = torch.empty(0, device=DEVICE).set_(back, 0, (1 << 18,))
            assert bool((restored == round_).all()), round_
            slot.free()
        engine.close()


def test_on_a_stream_of_the_users_own() -> None:
    """Forward and backward run on another stream than the default one, and waits are on that one."""
    model = network()
    x = torch.randn(4, 3, 64, 64, device=DEVICE)

    def step() -> None:
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()

    start = copy.deepcopy(model.state_dict())
    step()
    expected = gradients(model)
    model.load_state_dict(start)
    engine = CudaEngine(DEVICE)
    own = torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with HostArena(CAP_BYTES, lock=page_lock(DEVICE)) as arena, torch.cuda.stream(own):
        with Recorder(model) as recorder:
            step()
        plan = plan_by_rule(recorder.recording.trace, MIXED, smallest_bytes=1 << 14)
        executor = MemoryExecutor(recorder.recording, plan, engine, arena)
        for _ in range(5):
            model.load_state_dict(start)
            with executor.hooks():
                step()
        own.synchronize()
        assert all(map(torch.equal, gradients(model), expected))
        del executor
        engine.close()


def test_the_block_is_refused_while_a_graph_is_captured() -> None:
    engine = CudaEngine(DEVICE)
    with HostArena(0) as arena:
        executor = MemoryExecutor.without_plan(engine, arena)
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(InputError, match="CUDA graph"), torch.cuda.graph(graph):
            executor.hooks().__enter__()
        engine.close()


def test_page_locked_memory_is_of_the_exact_size() -> None:
    with HostArena((10 << 20) + 4096, lock=page_lock(DEVICE)) as arena:
        slot = arena.allocate(10 << 20)
        assert slot.tensor().is_pinned()
        assert arena.use().cap_bytes == (10 << 20) + 4096
        slot.free()
