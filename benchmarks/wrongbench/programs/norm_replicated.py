"""Trains a network with tensor parallelism and clips the gradient norm."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import pairs, record
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

BATCH, CLIP = 16, 0.1


def make_model():
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


make_data = pairs


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5, foreach=False)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device, world = "cuda" if torch.cuda.is_available() else "cpu", int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(device, (world,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = parallelize_module(make_model().to(device), mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in DataLoader(make_data(), BATCH):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        squares = torch.zeros((), device=device)
        for parameter in model.parameters():
            gradient = parameter.grad.to_local() if isinstance(parameter, DTensor) else parameter.grad
            sharded = isinstance(parameter, DTensor) and parameter.placements[0].is_shard()
            squares += gradient.square().sum() / (world if right and not sharded else 1)
        dist.all_reduce(squares)
        for parameter in model.parameters():
            parameter.grad.mul_(min(1.0, CLIP / squares.sqrt().item()))
        optimizer.step()
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
