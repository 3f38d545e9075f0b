"""What a rehearsal needs of torch, as a script of rank 0 of 2, with what must come of it.

`trimaran.rehearsal.build` rehearses it once with each build. Every figure is known by hand: a block of the allocator is
a multiple of 512 bytes.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def same(what: str, found: object, expected: object) -> None:
    """End here where something is not as it must be."""
    if found != expected:
        sys.exit(f"{what}: {found}, not {expected}")


def devices() -> None:
    """The device is there, is current, and has the memory that is taken of it."""
    same("torch.cuda.is_available()", torch.cuda.is_available(), True)
    same("devices", torch.cuda.device_count(), 2)
    same("the accelerator", str(torch.accelerator.current_accelerator()), "cuda")
    torch.cuda.set_device(1)
    same("the current device", torch.empty(1, device="cuda").device, torch.device("cuda", 1))
    torch.cuda.set_device(0)
    before = torch.cuda.memory_allocated()
    block = torch.empty(1024, 1024, device="cuda")
    same("bytes of 1024 x 1024 in fp32", torch.cuda.memory_allocated() - before, 4 * 1024 * 1024)
    copied = torch.ones(3).pin_memory().to("cuda", non_blocking=True)
    same("a pinned copy", (copied.device.type, copied.sum().item(), copied.cpu().tolist()), ("cuda", 3.0, [1.0] * 3))
    del block, copied
    same("bytes given back", torch.cuda.memory_allocated() - before, 0)


def streams() -> None:
    """Streams and events are numbers."""
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        tensor = torch.zeros(8, device="cuda")
        event.record()
    torch.cuda.current_stream().wait_event(event)
    tensor.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    same("the event", event.query(), True)


class SelfTestLayer(nn.Module):
    """Attention, a norm and two products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64)
        self.into = nn.Linear(64, 3 * 64, bias=False)
        self.out = nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of [rows, steps, 64]."""
        parts = self.into(self.norm(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind()
        attended = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        out: torch.Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return x + out


def kernels() -> None:
    """Layers that take other kernels on a GPU; gradients, in mixed precision and by recomputation."""
    x = torch.randn(2, 16, 64, device="cuda", requires_grad=True)
    recurrent, convolution = nn.LSTM(64, 32, batch_first=True).cuda(), nn.Conv1d(16, 4, 3).cuda()
    normalised = nn.BatchNorm1d(4).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        made = torch.utils.checkpoint.checkpoint(SelfTestLayer().cuda(), x, use_reentrant=False)
        loss = normalised(convolution(recurrent(made)[0])).float().square().mean()
    loss.backward()
    for what, tensor in {"the input": x, "a weight": convolution.weight}.items():
        found = None if tensor.grad is None else (tensor.grad.device, tensor.grad.shape)
        same(f"the gradient of {what}", found, (torch.device("cuda", 0), tensor.shape))


def train(model: nn.Module, *, fused: bool = False) -> None:
    """Two steps, the second with state of the optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    for _ in range(2):
        model(torch.randn(2, 16, 64, device="cuda")).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """All of it."""
    dist.init_process_group("nccl")
    devices()
    streams()
    kernels()
    train(DistributedDataParallel(SelfTestLayer().cuda()), fused=True)
    layer = SelfTestLayer()
    fully_shard(layer)
    weight: object = layer.out.weight
    same("a share", weight.to_local().shape if isinstance(weight, DTensor) else None, (32, 64))
    train(layer)
    total = torch.ones(256, device="cuda")
    dist.all_reduce(total, async_op=True).wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
