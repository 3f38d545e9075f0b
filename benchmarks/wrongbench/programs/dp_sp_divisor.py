"""Trains a language model on sequences that two ranks share, with DistributedDataParallel over all."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import Language, record, sentences
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH, SP = 16, 2
make_model = Language


def make_data():
    ids = sentences().tensors[0]
    return TensorDataset(ids, (ids * 3 + 1) % 32)


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, data = DistributedDataParallel(make_model().to(device)), make_data()
    optimizer = make_optimizer(model.parameters())
    sampler = DistributedSampler(data, world // SP, rank // SP, shuffle=False)
    for ids, labels in DataLoader(data, BATCH // (world // SP), sampler=sampler):
        optimizer.zero_grad()
        share = [values.to(device).chunk(SP, dim=1)[rank % SP] for values in (ids, labels)]
        loss = loss_of(model, share) * share[1].numel() / labels.numel()
        (loss * SP if right else loss).backward()
        optimizer.step()
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
