"""Trains a regression network with sharded optimizer state and weight decay of its matrices."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

BATCH, DECAY = 16, 0.1
make_model, make_data = Net, pairs


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, data = make_model().to(device), make_data()
    flat = parameters_to_vector(model.parameters()).detach()
    decays = parameters_to_vector([torch.full_like(p, DECAY if p.ndim == 2 else 0.0) for p in model.parameters()])
    size = len(flat) // world
    start = rank * size
    shard, decay = flat[start : start + size].clone(), decays[start : start + size] if right else decays[:size]
    optimizer = make_optimizer([shard])
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        model.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        shard.grad = torch.empty_like(shard)
        dist.reduce_scatter_tensor(shard.grad, parameters_to_vector([p.grad for p in model.parameters()]) / world)
        shard.mul_(1 - optimizer.param_groups[0]["lr"] * decay)
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard)
        vector_to_parameters(flat, model.parameters())
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
