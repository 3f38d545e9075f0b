"""A DDP script that knows nothing of Trimaran; rank 1 has twice the samples, and so twice the work."""

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

    def forward(self, value):
        until = time.perf_counter() + 4e-3 * len(value)
        while time.perf_counter() < until:
            pass
        return self.layer(value)


def main():
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(60):
        loss = model(torch.ones(8 if dist.get_rank() else 4, 8)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
