"""A DDP script that knows nothing of Trimaran; rank 1 has twice the samples, and so twice the work.

With "slow" in its command both have four samples, rank 0 is late for each forward, and DDP sends a buffer before it. It
then forks its ranks: torch is imported once.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Four milliseconds for every sample, and a layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        if "slow" in sys.argv:
            self.register_buffer("kept", torch.zeros(8))

    def forward(self, value):
        work(4e-3 * len(value))
        return self.layer(value)


def work(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def main(rank=None, store=None):
    torch.manual_seed(0)
    if rank is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    slow = "slow" in sys.argv
    for _ in range(40 if slow else 60):
        if slow and not dist.get_rank():
            work(16e-3)
        loss = model(torch.ones(8 if dist.get_rank() and not slow else 4, 8)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not slow:
            dist.all_reduce(loss.detach())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "slow" in sys.argv:
        mp.start_processes(main, (Path("meeting").resolve(),), nprocs=2, start_method="fork")
    else:
        main()
