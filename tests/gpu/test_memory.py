"""Memory virtualization on a GPU: copy streams, page-locked memory, gradients and peaks under a plan."""

import contextlib
import copy
import os
import warnings

import pytest
import torch
from tests import builders
from tests.gpu.running import DEVICE
from tests.raising import raises
from tests.unit.memory_hooks.plans import MIXED, OFFLOAD, RECOMPUTE, plan_by_rule
from torch import nn

import trimaran
from trimaran.graph.trace.record import Recorder
from trimaran.memory_hooks.accountant import Accountant
from trimaran.memory_hooks.arena import HostArena, page_lock
from trimaran.memory_hooks.copies import ArenaStore, CudaEngine
from trimaran.memory_hooks.executor import MemoryExecutor
from trimaran.memory_hooks.recompute_check import differs

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
            executor.begin_forward(verify=verify)
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
    engine = CudaEngine(DEVICE)
    square = torch.ones(4096, 4096, device=DEVICE)
    value = torch.zeros(1 << 20, device=DEVICE)
    with HostArena(16 << 20, lock=page_lock(DEVICE)) as arena:
        torch.cuda.synchronize()
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
        with raises("virtual-memory.cuda-graph"), torch.cuda.graph(graph):
            executor.hooks().__enter__()
        engine.close()


def test_page_locked_memory_is_of_the_exact_size() -> None:
    with HostArena((10 << 20) + 4096, lock=page_lock(DEVICE)) as arena:
        slot = arena.allocate(10 << 20)
        assert slot.tensor().is_pinned()
        assert arena.use().cap_bytes == (10 << 20) + 4096
        slot.free()


class Shuffled(torch.utils.data.Dataset):
    """Samples that are made on the host, by processes of a loader."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 64, 64), float(index))


def loader(workers: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Shuffled(), batch_size=16, num_workers=workers)


def train(model: nn.Module, workers: int, epochs: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for batch in loader(workers):
            optimizer.zero_grad()
            loss = model(batch.to(DEVICE)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_with_a_loader_has_its_losses_and_keeps_its_budget(workers: int) -> None:
    """Batches are put together on the host, in this process or in forked ones, the last of which come after the
    arena was page-locked.
    """
    expected = train(network(), workers, 3)
    model = network()
    with trimaran.virtual_memory(budget="70%", smallest="16KiB", limit_s=5.0) as memory:
        losses = train(model, workers, 3)
        report = memory.report()
    assert losses == expected
    assert report.device == "cuda"
    assert report.phase == "run"
    assert report.measured_peak_bytes is not None
    assert report.budget_bytes is not None
    assert report.measured_peak_bytes <= report.budget_bytes


def test_a_plan_leaves_room_for_the_gaps_of_an_allocator_that_is_limited() -> None:
    """Maps of 98 MiB, then of 24: in a steady step no block goes back to the device."""
    blocks = [layer for _ in range(12) for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())]
    blocks.insert(len(blocks) // 2, nn.MaxPool2d(2))
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *blocks).to(DEVICE)
    x = torch.randn(64, 3, 112, 112, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.cuda.empty_cache()
    with trimaran.virtual_memory(budget="60%", enforce=True, limit_s=5.0) as memory:
        for step in range(14):
            if step == 10:
                before = torch.cuda.memory_stats()["num_alloc_retries"]
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        assert memory.report().phase == "run"
        assert torch.cuda.memory_stats()["num_alloc_retries"] == before, memory.report()


def test_random_numbers_are_those_of_the_plain_loop() -> None:
    """Dropout draws on the device; recording, planning and recomputing draw nothing."""

    def run(around: contextlib.AbstractContextManager[object]) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1))))
        model.to(DEVICE)
        x = torch.randn(16384, 512, device=DEVICE)  # far more than workspaces, which stay
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with around:
            for _ in range(8):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        return torch.cuda.get_rng_state(), next(model.parameters()).detach().clone()

    expected = run(contextlib.nullcontext())
    found = run(trimaran.virtual_memory(budget="70%", smallest="16KiB", limit_s=5.0))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_the_workspace_of_an_operation_is_in_the_trace_and_a_batch_on_the_host_is_not() -> None:
    model = network()
    with Recorder(model) as recorder:
        batch = torch.stack([torch.ones(3, 64, 64) for _ in range(16)])
        model(batch.to(DEVICE)).square().mean().backward()
    trace = recorder.recording.trace
    assert trace.device == "cuda"
    on_host = [op for op in trace.ops if op.name == "aten.stack.default"]
    assert [op.duration_s for op in on_host] == [0.0]
    assert all(trace.storages[number].nbytes == 0 for op in on_host for number, _ in op.writes)
    assert all(op.scratch_bytes >= 0 for op in trace.ops)


def test_a_comparison_takes_chunks_of_the_device_and_no_more() -> None:
    """256 MiB that differ everywhere between the views, in chunks of 4 MiB."""
    nbytes = 256 << 20
    engine = CudaEngine(DEVICE)
    real = torch.zeros(nbytes // 4, device=DEVICE)
    with HostArena(nbytes) as arena:
        slot = arena.allocate(nbytes)
        engine.save(real.untyped_storage(), slot).wait()
        torch.cuda.synchronize()
        real[1::2] = 1.0
        view = builders.view(shape=(nbytes // 8,), stride=(2,))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        assert not differs(real.untyped_storage(), slot, 0, [view])
        assert torch.cuda.max_memory_allocated() - before <= 4 * (4 << 20)
        slot.free()
    engine.close()


def test_a_forked_process_leaves_page_locked_memory_alone() -> None:
    """Pages that were copied on write would no more be those that the GPU reads."""
    engine = CudaEngine(DEVICE)
    value = torch.full((1 << 20,), 3.0, device=DEVICE)
    with HostArena(8 << 20, lock=page_lock(DEVICE)) as arena:
        slot = arena.allocate(4 << 20)
        engine.save(value.untyped_storage(), slot).wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            arena.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        torch.cuda.synchronize()
        slot.tensor().view(torch.float32).fill_(5.0)
        back = engine.allocate(4 << 20)
        engine.load(slot, back).wait()
        assert bool((torch.empty(0, device=DEVICE).set_(back, 0, (1 << 20,)) == 5.0).all())
        slot.free()
    engine.close()
