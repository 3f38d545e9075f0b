"""A CNN under DDP, started with spawn. Planted: in each step, one rank's shard has more samples than the other's."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TOTAL = 128


def train(rank, world, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    images, labels = torch.randn(1024, 1, 28, 28), torch.randint(0, 10, (1024,))
    shares = torch.Generator().manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    ends = []
    for step in range(args.steps):
        first = TOTAL // 2 if args.even else int(torch.randint(80, 112, (), generator=shares))
        start = step * TOTAL % 1024
        mine = slice(start, start + first) if rank == 0 else slice(start + first, start + TOTAL)
        optimizer.zero_grad()
        loss = criterion(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        ends.append(time.perf_counter())
    warm = len(ends) // 5
    if rank == 0:
        print(f"loss {loss.item():.3f}")
        print(f"{1e3 * (ends[-1] - ends[warm]) / (len(ends) - 1 - warm):.4f} ms/step")
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--port", type=int, default=29531)
    args = parser.parse_args()
    mp.spawn(train, args=(2, args), nprocs=2)


if __name__ == "__main__":
    main()
