"""Trains a regression network with gradients averaged by hand."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 16
make_model, make_data = Net, pairs


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0 if right else rank)
    model, data = make_model().to(device), make_data()
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
