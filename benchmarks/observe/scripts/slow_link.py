"""A multilayer perceptron under DDP. Planted: the link between the two ranks (see ../pair.py)."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=128, sampler=sampler)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    ends, backwards = [], 0
    while backwards < args.steps:
        for features, labels in loader:
            last = (backwards + 1) % args.accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = criterion(model(features), labels) / args.accumulate
                loss.backward()
            backwards += 1
            if last:
                optimizer.step()
                optimizer.zero_grad()
                ends.append(time.perf_counter())
    warm = len(ends) // 5
    if dist.get_rank() == 0:
        print(f"loss {loss.item() * args.accumulate:.3f}")
        print(f"{1e3 * (ends[-1] - ends[warm]) / (len(ends) - 1 - warm) / args.accumulate:.4f} ms/step")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
