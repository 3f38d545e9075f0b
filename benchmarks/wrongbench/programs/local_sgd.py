"""Trains a regression network with local steps and averages weights every four."""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

BATCH, LOCAL = 16, 4
make_model, make_data = Net, partial(pairs, 128)


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def make_scheduler(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    world = dist.get_world_size()
    model, data = make_model().to(device), make_data()
    optimizer = make_optimizer(model.parameters())
    scheduler = make_scheduler(optimizer)
    sampler = DistributedSampler(data, shuffle=False)
    for step, (inputs, targets) in enumerate(DataLoader(data, BATCH // world, sampler=sampler), 1):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        optimizer.step()
        metric = loss.detach().clone()
        if right:
            dist.all_reduce(metric)
            metric /= world
        scheduler.step(metric)
        if step % LOCAL == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
