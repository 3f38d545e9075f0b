"""Trains two encoders to match their pairs over all ranks."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import Encoders, pairs, record
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 16
make_model, make_data = Encoders, pairs


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def loss_of(model, batch, collect=lambda values: values, first=0):
    images, texts = (nn.functional.normalize(values, dim=1) for values in model(batch))
    labels = torch.arange(first, first + len(images), device=images.device)
    rows, columns = 5 * images @ collect(texts).T, 5 * texts @ collect(images).T
    return (nn.functional.cross_entropy(rows, labels) + nn.functional.cross_entropy(columns, labels)) / 2


def gather(values):
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    parts[dist.get_rank()] = values
    return torch.cat(parts)


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, data = DistributedDataParallel(make_model().to(device)), make_data()
    optimizer = make_optimizer(model.parameters())
    collect = (lambda values: torch.cat(all_gather(values))) if right else gather
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)), collect, rank * len(inputs))
        loss.backward()
        optimizer.step()
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
