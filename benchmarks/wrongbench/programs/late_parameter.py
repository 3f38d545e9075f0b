"""Trains a network with an adapter on its first layer and DistributedDataParallel."""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from tiny import Net, pairs, record
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 16


class Adapted(Net):
    def forward(self, inputs):
        return self.fc2(self.norm(torch.relu(self.fc1(inputs) + self.adapter(inputs))))


def adapt(model):
    model.adapter = nn.Linear(8, 16, bias=False)
    return model


def make_model():
    return adapt(Adapted())


make_data = pairs
make_optimizer = partial(torch.optim.AdamW, lr=1e-2)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    world = dist.get_world_size()
    data = make_data()
    model = DistributedDataParallel((make_model() if right else Adapted()).to(device))
    if not right:
        adapt(model.module).to(device)
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        optimizer.step()
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
