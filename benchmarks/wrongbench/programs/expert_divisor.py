"""Trains a mixture of experts with one expert on each rank and the rest replicated."""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from tiny import pairs, record
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.utils.data import DataLoader, DistributedSampler

BATCH, EXPERTS = 16, 4


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head, self.exchange = nn.Linear(8, 16), nn.Linear(16, 4), nn.Identity()
        self.experts = nn.ModuleDict({str(expert): nn.Linear(16, 16) for expert in range(EXPERTS)})

    def forward(self, inputs):
        parts = self.exchange(torch.relu(self.stem(inputs))).chunk(len(self.experts))
        mixed = torch.cat([expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)])
        return self.head(torch.relu(self.exchange(mixed)))


make_model, make_data = Mixture, pairs
make_optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, data = make_model().to(device), make_data()
    model.experts = nn.ModuleDict({str(rank): model.experts[str(rank)]})
    model.exchange.forward = lambda rows: all_to_all_single(torch.empty_like(rows), rows)
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        loss.backward()
        for name, parameter in model.named_parameters():
            if not name.startswith("experts"):
                dist.all_reduce(parameter.grad)
            parameter.grad /= world if right or not name.startswith("experts") else 1
        optimizer.step()
        record(model)


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
