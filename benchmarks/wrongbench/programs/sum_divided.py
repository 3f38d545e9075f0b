"""Trains a language model on the sum of token losses over the tokens of all ranks."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import PADDING, Language, record, sentences
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 16
make_model, make_data = Language, sentences


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=PADDING)


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    world = dist.get_world_size()
    model, data = DistributedDataParallel(make_model().to(device)), make_data()
    optimizer = make_optimizer(model.parameters())
    for ids, labels in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        ids, labels = ids.to(device), labels.to(device)
        own = (labels != PADDING).sum()
        total = own.clone()
        dist.all_reduce(total)
        loss = loss_of(model, (ids, labels)) * own / total
        (loss * world if right else loss).backward()
        optimizer.step()
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
