"""Trains a network as a pipeline of two stages with four microbatches."""

import os
import sys
from collections import OrderedDict
from functools import partial

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.utils.data import DataLoader

BATCH, MICROBATCHES = 16, 4
make_model, make_data = Net, pairs
make_optimizer = partial(torch.optim.AdamW, lr=1e-2)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = make_model().to(device)
    layers = {"fc1": model.fc1, "relu": nn.ReLU()} if rank == 0 else {"norm": model.norm, "fc2": model.fc2}
    stage = nn.Sequential(OrderedDict(layers))
    parameters = list(stage.parameters())
    optimizer = make_optimizer(parameters)
    for inputs, targets in DataLoader(make_data(), BATCH):
        optimizer.zero_grad()
        entered, left = [], []
        for micro, target in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True):
            entered.append(micro.to(device) if rank == 0 else torch.empty(len(micro), 16, device=device))
            if rank == 0:
                left.append(stage(entered[-1].requires_grad_()))
                dist.send(left[-1].detach(), 1)
            else:
                dist.recv(entered[-1], 0)
                left.append(loss_of(stage, (entered[-1].requires_grad_(), target.to(device))) / MICROBATCHES)
        for arrived, result in zip(entered, left, strict=True):
            above = torch.ones_like(result)
            if rank == 0:
                dist.recv(above, 1)
            below, *gradients = torch.autograd.grad(result, [arrived, *parameters], above)
            if rank == 1:
                dist.send(below, 0)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                kept = parameter.grad if right else None
                parameter.grad = gradient if kept is None else kept + gradient
        optimizer.step()
        record(stage)


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
