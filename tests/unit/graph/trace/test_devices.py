"""Steps with tensors on two devices. Meta tensors stand for a GPU: the host is another device than theirs."""

import pytest
import torch
from tests.dropped import live_dropped
from tests.unit.memory.traces import TraceMaker
from torch import nn

from trimaran.graph.trace.calls import is_repeatable
from trimaran.graph.trace.live_bytes import live_kept
from trimaran.graph.trace.meta import trace_on_meta
from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.types import Role, StepTrace

BATCH = (64, 32)


def step_with_a_loader(model: nn.Module | None) -> StepTrace:
    """A batch is put together on the host, and a network on another device trains with it."""
    linear = nn.Linear(32, 32, device="meta")
    with Recorder(linear if model is None else model) as recorder:
        batch = torch.stack([torch.ones(32) for _ in range(64)])
        scaled = batch.requires_grad_().exp()  # packed by autograd, on the host
        linear(scaled.detach().to("meta")).sum().backward()
    return recorder.recording.trace


@pytest.mark.parametrize("known", [False, True])
def test_the_device_is_that_of_the_network_though_the_loader_comes_first(known: bool) -> None:
    trace = step_with_a_loader(None if known else nn.Module())
    assert trace.ops[0].name in ("aten.ones.default", "aten.stack.default")
    assert trace.device == "meta"


def test_a_loop_on_the_cpu_is_on_the_cpu() -> None:
    with Recorder() as recorder:
        torch.ones(3, requires_grad=True).exp().sum().backward()
    trace = recorder.recording.trace
    assert trace.device == "cpu"
    assert all(storage.nbytes for storage in trace.storages)


def test_what_is_on_the_host_takes_no_memory_of_the_device() -> None:
    """The stacked batch has 8 KiB on the host; what is made of it there is packed, and takes nothing either."""
    trace = step_with_a_loader(None)
    sizes = [storage.nbytes for storage in trace.storages if storage.role in (Role.INPUT, Role.ACTIVATION)]
    batch_bytes = 64 * 32 * 4
    assert sizes.count(batch_bytes) == 2  # the batch on the device, and the output
    packed = [trace.storages[tick.storage].nbytes for tick in trace.packs]
    assert 0 in packed
    assert batch_bytes in packed
    on_host = [storage for storage in trace.storages if not storage.nbytes]
    assert len(on_host) > 64
    assert not any(storage.movable or storage.copy_bytes for storage in on_host)


def test_scratch_is_live_while_its_operation_runs_and_no_longer() -> None:
    maker = TraceMaker()
    x = maker.make(100)
    maker.op([], [x], 1.0)
    y = maker.make(200)
    maker.op([x], [y], 1.0, scratch_bytes=1000)
    maker.drop(x)
    maker.op([y], [], 1.0)
    trace = maker.trace()
    assert live_kept(trace).tolist() == live_dropped(trace).tolist() == [100, 1300, 200]


def test_no_convolution_is_repeated_where_a_gpu_may_choose_another_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    convolution = torch.ops.aten.convolution.default

    def repeatable(device: str) -> bool:
        x, weight = torch.ones(1, 1, 4, 4, device=device), torch.ones(1, 1, 3, 3, device=device)
        return is_repeatable(convolution, (x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {})

    assert repeatable("cpu")
    assert repeatable("meta")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert repeatable("cpu")
    assert not repeatable("meta")


def test_dropout_keeps_a_byte_an_element_on_a_gpu() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.ReLU())

    trace = trace_on_meta(make, lambda: torch.zeros(BATCH), lambda model, x: model(x).sum())
    whole = 64 * 32 * 4
    assert sorted(storage.nbytes for storage in trace.movable) == sorted([whole, whole, whole // 4])
    inactive = trace_on_meta(lambda: make().eval(), lambda: torch.zeros(BATCH), lambda model, x: model(x).sum())
    assert not any("dropout" in operation.name for operation in inactive.ops)


def test_flash_attention_takes_fewer_heads_of_keys_and_values_as_they_are() -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(64, 64), nn.Linear(64, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query = self.query(x).view(2, 8, 4, 16).transpose(1, 2)
            key = self.key(x).view(2, 8, 1, 16).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)

    trace = trace_on_meta(
        Grouped, lambda: torch.zeros(2, 8, 64), lambda model, x: model(x).sum(), autocast=torch.bfloat16
    )
    names = [operation.name for operation in trace.ops]
    assert "aten._scaled_dot_product_flash_attention.default" in names
    assert "aten.clone.default" not in names
    packed = {tick.view.shape for tick in trace.packs if len(tick.view.shape) == 4}
    assert (2, 1, 8, 16) in packed


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda y: nn.functional.interpolate(y, scale_factor=2, mode="bilinear"), "aten.upsample_bilinear2d.default"),
        (torch.linalg.vector_norm, "aten.linalg_vector_norm.default"),
    ],
)
def test_autocast_computes_in_float32_what_a_gpu_does(function, name: str) -> None:
    trace = trace_on_meta(
        lambda: nn.Conv2d(3, 4, 3),
        lambda: torch.zeros(2, 3, 8, 8),
        lambda model, x: function(model(x)).sum(),
        autocast=torch.bfloat16,
    )
    dtypes = {operation.name: operation.dtype for operation in trace.ops}
    assert dtypes["aten.convolution.default"] == "bfloat16"
    assert dtypes[name] == "float32"
