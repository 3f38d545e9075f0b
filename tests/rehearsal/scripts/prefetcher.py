"""Batches copied ahead on a stream of their own, timed by CUDA events; an EMA copy of the weights; nvtx ranges."""

import copy
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Endless(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        generator = torch.Generator().manual_seed(info.id if info else 0)
        while True:
            yield torch.rand(3, 64, 64, generator=generator), torch.randint(10, (), generator=generator)


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.x, self.y = next(self.loader)
        except StopIteration:
            self.x = self.y = None
            return
        with torch.cuda.stream(self.stream):
            self.x = self.x.cuda(non_blocking=True)
            self.y = self.y.cuda(non_blocking=True)
            self.x = self.x.float().sub_(0.5).div_(0.25)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        x, y = self.x, self.y
        if x is not None:
            x.record_stream(torch.cuda.current_stream())
            y.record_stream(torch.cuda.current_stream())
        self.preload()
        return x, y


class EMA:
    def __init__(self, model, decay=0.999):
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.shadow.parameters(), model.parameters(), strict=True):
            mine.mul_(self.decay).add_(theirs, alpha=1 - self.decay)
        for mine, theirs in zip(self.shadow.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)


def net():
    layers, width = [], 3
    for out in (64, 128, 256):
        layers += [nn.Conv2d(width, out, 3, 2, 1), nn.BatchNorm2d(out), nn.SiLU(), nn.GroupNorm(8, out)]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    properties = torch.cuda.get_device_properties(local)
    if dist.get_rank() == 0:
        print(f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {properties.multi_processor_count} SMs")
        print(f"capability {torch.cuda.get_device_capability()}, {torch.cuda.device_count()} devices, "
              f"nccl {torch.cuda.nccl.version()}, cuda {torch.version.cuda}")  # fmt: skip
    torch.cuda.set_per_process_memory_fraction(0.95)
    model = net().cuda()
    ema = EMA(model)
    model = DDP(model, device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    fetch = Prefetcher(DataLoader(Endless(), batch_size=64, num_workers=2, pin_memory=True, persistent_workers=True))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for step in range(4):
        x, y = fetch.next()
        start.record()
        torch.cuda.nvtx.range_push(f"step {step}")
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.nvtx.range("backward"):
            loss.backward()
        optimizer.step()
        ema.update(model.module)
        torch.cuda.nvtx.range_pop()
        end.record()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f} {start.elapsed_time(end):.2f} ms", flush=True)
    if dist.get_rank() == 0:
        print(torch.cuda.memory_summary(abbreviated=True))
        stats = torch.cuda.memory_stats()
        print("peak", stats["allocated_bytes.all.peak"], "retries", stats.get("num_alloc_retries", 0), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
