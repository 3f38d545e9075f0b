"""A DDP script that knows nothing of Trimaran; rank 1 has twice the samples, and so twice the work.

With "slow" in its command both have four samples, rank 0 is late for each forward, and DDP sends a buffer before it.
"""

import sys
import time

import torch
import torch.distributed as dist
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


def main():
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    slow = "slow" in sys.argv
    for _ in range(60):
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
    main()
