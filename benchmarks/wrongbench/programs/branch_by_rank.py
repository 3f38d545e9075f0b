"""Trains a student with DistributedDataParallel and a teacher that follows its weights."""

import copy
import os
import sys

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH, DECAY = 16, 0.5
make_model, make_data = Net, pairs


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def loss_of(model, batch, teacher=None):
    outputs = model(batch[0])
    with torch.no_grad():
        guide = (teacher or model)(batch[0])
    return nn.functional.mse_loss(outputs, batch[1]) + nn.functional.mse_loss(outputs, guide)


def follow(teacher, student):
    for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
        kept.data.lerp_(new.data, 1 - DECAY)


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, data = DistributedDataParallel(make_model().to(device)), make_data()
    teacher = copy.deepcopy(model.module)
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)), teacher)
        loss.backward()
        optimizer.step()
        if right or rank == 0:
            follow(teacher, model.module)
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
