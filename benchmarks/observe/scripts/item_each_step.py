"""A small network under DDP with careful logging. Planted: every metric is reduced over ranks and read in each step."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def reduced(value):
    """Mean over ranks, as a number."""
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1200)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(8192, 128), torch.randint(0, 10, (8192,)))
    loader = DataLoader(data, batch_size=64, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    ends, history = [], []
    while len(ends) < args.steps:
        for features, labels in loader:
            optimizer.zero_grad()
            output = model(features)
            loss = criterion(output, labels)
            loss.backward()
            optimizer.step()
            if len(ends) % args.every == 0:
                best = output.detach().topk(5).indices == labels[:, None]
                weights = model.module[0].weight
                history.append({
                    "loss": reduced(loss),
                    "top1": reduced(best[:, :1].sum().float()),
                    "top5": reduced(best.sum().float()),
                    "gradient": reduced(weights.grad.norm()),
                    "weights": reduced(weights.norm()),
                })  # fmt: skip
            ends.append(time.perf_counter())
    warm = len(ends) // 5
    if dist.get_rank() == 0:
        print(f"loss {history[-1]['loss']:.3f}")
        print(f"{1e3 * (ends[-1] - ends[warm]) / (len(ends) - 1 - warm):.4f} ms/step")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
