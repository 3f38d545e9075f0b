"""Trains a regression network with sharded optimizer state and clips the gradient norm."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

BATCH, CLIP = 16, 0.1
make_model, make_data = Net, pairs


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, data = make_model().to(device), make_data()
    flat = parameters_to_vector(model.parameters()).detach()
    shard = flat.chunk(world)[rank].clone()
    optimizer = make_optimizer([shard])
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        model.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        shard.grad = torch.empty_like(shard)
        dist.reduce_scatter_tensor(shard.grad, parameters_to_vector([p.grad for p in model.parameters()]) / world)
        squares = shard.grad.square().sum()
        if right:
            dist.all_reduce(squares)
        shard.grad.mul_(min(1.0, CLIP / squares.sqrt().item()))
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard)
        vector_to_parameters(flat, model.parameters())
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
