"""Trains a regression network with local steps and an outer optimizer every four."""

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
    return torch.optim.AdamW(parameters, lr=1e-2)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def make_outer(parameters):
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model, data = make_model().to(device), make_data()
    for parameter in model.parameters():
        if right or parameter.ndim == 2:
            dist.broadcast(parameter.data, 0)
    anchors = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer, outer = make_optimizer(model.parameters()), make_outer(anchors)
    sampler = DistributedSampler(data, shuffle=False)
    for step, (inputs, targets) in enumerate(DataLoader(data, BATCH // world, sampler=sampler), 1):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        optimizer.step()
        if step % LOCAL == 0:
            for anchor, parameter in zip(anchors, model.parameters(), strict=True):
                anchor.grad = (anchor - parameter.data) / world
                dist.all_reduce(anchor.grad)
            outer.step()
            for anchor, parameter in zip(anchors, model.parameters(), strict=True):
                parameter.data.copy_(anchor)
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
