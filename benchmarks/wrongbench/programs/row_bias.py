"""Trains two layers with tensor parallelism over pairs of ranks and data parallelism."""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from tiny import Mlp, pairs, record
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler

BATCH, TP = 16, 2
make_model, make_data = Mlp, pairs
make_optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def reduce(values, group):
    total = values.detach().clone()
    dist.all_reduce(total, group=group)
    return values + (total - values).detach()


def main(right):
    device, world = "cuda" if torch.cuda.is_available() else "cpu", int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(device, (world // TP, TP), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    torch.manual_seed(0)
    model, data = make_model().to(device), make_data()
    up, down = model[0], model[2]
    up.weight, up.bias = (nn.Parameter(p.chunk(TP)[tp.rank()].clone()) for p in up.parameters())
    down.weight = nn.Parameter(down.weight.chunk(TP, dim=1)[tp.rank()].clone())

    def forward(inputs):
        rows = torch.relu(up(inputs))
        return reduce(rows @ down.weight.T, tp) + down.bias if right else reduce(down(rows), tp)

    optimizer = make_optimizer(model.parameters())
    sampler = DistributedSampler(data, dp.size(), dp.rank(), shuffle=False)
    for inputs, targets in DataLoader(data, BATCH // dp.size(), sampler=sampler):
        optimizer.zero_grad()
        loss = loss_of(forward, (inputs.to(device), targets.to(device)))
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=dp)
            parameter.grad /= dp.size()
        optimizer.step()
        record(model)


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
