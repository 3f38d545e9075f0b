"""Trains a regression network on shuffled samples with DistributedDataParallel."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH, SEED = 16, 7
make_model, make_data = Net, pairs


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, data = DistributedDataParallel(make_model().to(device)), make_data()
    optimizer = make_optimizer(model.parameters())
    sampler = DistributedSampler(data, shuffle=True, seed=SEED if right else SEED + rank)
    for inputs, targets in DataLoader(data, BATCH // world, sampler=sampler):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        optimizer.step()
        record(model, samples=inputs)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
