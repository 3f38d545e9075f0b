"""Trains a regression network with fully sharded parameters and orthogonal updates of its matrices."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

BATCH, RATE = 16, 0.02
make_model, make_data = Net, pairs


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


def orthogonal(gradient):
    matrix = gradient / (gradient.norm() + 1e-7)
    for _ in range(5):
        square = matrix @ matrix.T
        matrix = 3.4445 * matrix + (-4.7750 * square + 2.0315 * square @ square) @ matrix
    return matrix


def main(right):
    device, world = "cuda" if torch.cuda.is_available() else "cpu", int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(device, (world,))
    torch.manual_seed(0)
    model, data = fully_shard(make_model().to(device), mesh=mesh), make_data()
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        for parameter in model.parameters():
            if parameter.ndim == 2:
                gradient = parameter.grad.full_tensor() if right else parameter.grad.to_local()
                update = orthogonal(gradient)
                parameter.grad.to_local().copy_(update.chunk(world)[mesh.get_local_rank()] if right else update)
        optimizer.step()
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
