"""Trains a mixture of experts with one expert on each rank and the rest replicated."""

import os
import sys

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
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.experts = nn.ModuleDict({str(expert): nn.Linear(16, 16) for expert in range(EXPERTS)})

    def forward(self, inputs, exchange=lambda rows: rows):
        parts = exchange(torch.relu(self.stem(inputs))).chunk(len(self.experts))
        mixed = torch.cat([expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)])
        return self.head(torch.relu(exchange(mixed)))


make_model, make_data = Mixture, pairs


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def loss_of(model, batch, *exchange):
    return nn.functional.mse_loss(model(batch[0], *exchange), batch[1])


def exchange(rows):
    return all_to_all_single(torch.empty_like(rows), rows)


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, data = make_model().to(device), make_data()
    model.experts = nn.ModuleDict({str(rank): model.experts[str(rank)]})
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)), exchange)
        loss.backward()
        for name, parameter in model.named_parameters():
            if not name.startswith("experts"):
                dist.all_reduce(parameter.grad)
            parameter.grad /= world if right or not name.startswith("experts") else 1
        optimizer.step()
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main("--right" in sys.argv)
