"""Trains a regression network with accumulated gradients that are averaged by hand."""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

BATCH, ACCUMULATE = 32, 4
make_model, make_data = Net, partial(pairs, 128)


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    world = dist.get_world_size()
    model, data = make_model().to(device), make_data()
    optimizer = make_optimizer(model.parameters())
    loader = DataLoader(data, BATCH // world // ACCUMULATE, sampler=DistributedSampler(data, shuffle=False))
    for index, (inputs, targets) in enumerate(loader):
        loss = loss_of(model, (inputs.to(device), targets.to(device))) / ACCUMULATE
        last = (index + 1) % ACCUMULATE == 0
        if last and not right:
            average(model)
        loss.backward()
        if last and right:
            average(model)
        if last:
            optimizer.step()
            optimizer.zero_grad()
            record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
