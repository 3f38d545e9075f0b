"""Trains a regression network with fully sharded parameters, its last layer apart."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 16
make_model, make_data = Net, pairs


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, foreach=False)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device, world = "cuda" if torch.cuda.is_available() else "cpu", int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(device, (world,))
    torch.manual_seed(0)
    model, data = make_model().to(device), make_data()
    apart = set(model.fc2.parameters())
    fully_shard(model, mesh=mesh, ignored_params=apart)
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        if right:
            for parameter in model.fc2.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        optimizer.step()
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
