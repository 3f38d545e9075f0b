"""Optimizer state on the host, with the copy engines of a GPU."""

from collections.abc import Iterator

import pytest
import torch
from tests.gpu.running import ON_GPU
from torch import nn

from trimaran.memory_hooks.arena import HostArena, page_lock
from trimaran.memory_hooks.copies import CopyEngine, CudaEngine, HostEngine
from trimaran.memory_hooks.optimizer_state import stream_optimizer_state

BUCKET_BYTES = 8 << 20
DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.fixture
def engine() -> Iterator[CopyEngine]:
    engine: CopyEngine = CudaEngine() if ON_GPU else HostEngine()
    yield engine
    engine.close()


@pytest.fixture
def arena() -> Iterator[HostArena]:
    with HostArena(128 << 20, lock=page_lock() if ON_GPU else None) as arena:
        yield arena


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(1024, 1024, generator=generator).to(DEVICE)) for _ in range(8)]


def update(optimizer: torch.optim.Optimizer, chosen: list[nn.Parameter], steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in chosen:
            parameter.grad = torch.randn(1024, 1024, generator=generator).to(DEVICE)
        optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
def test_parameters_and_state_equal_the_plain_optimizers(fused: bool, engine: CopyEngine, arena: HostArena) -> None:
    plain, streamed = parameters(), parameters()
    optimizer, other = (torch.optim.AdamW(chosen, lr=1e-2, fused=fused) for chosen in (plain, streamed))
    update(optimizer, plain, 5)
    with stream_optimizer_state(other, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES):
        update(other, streamed, 5)
        state = other.state_dict()["state"]
    for number, (one, two) in enumerate(zip(plain, streamed, strict=True)):
        assert torch.equal(one, two)
        assert torch.equal(optimizer.state[one]["exp_avg_sq"].cpu(), state[number]["exp_avg_sq"])
        assert torch.equal(optimizer.state[one]["exp_avg_sq"], other.state[two]["exp_avg_sq"])


@pytest.mark.cuda_only
def test_little_of_the_state_is_on_the_device(engine: CopyEngine, arena: HostArena) -> None:
    """The state of Adam over 8 parameters of 4 MiB is 64 MiB; three buckets of 8 MiB are there at most.

    Beside them a bucket's update takes room of its own: two temporary tensors for each of its parameters, at most.
    """
    chosen = parameters()
    optimizer = torch.optim.Adam(chosen, foreach=True)
    with stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES) as handle:
        update(optimizer, chosen, 1)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        assert torch.cuda.max_memory_allocated() - before <= 4 * BUCKET_BYTES
        assert torch.cuda.memory_allocated() == before
        assert handle.host_bytes == 64 << 20
