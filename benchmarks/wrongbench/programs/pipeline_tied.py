"""Trains a language model with tied embeddings as a pipeline of two stages."""

import os
import sys

import torch
import torch.distributed as dist
from tiny import Tied, record, sentences
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

BATCH, MICROBATCHES = 16, 4
make_model = Tied


def make_data():
    ids = sentences().tensors[0]
    return TensorDataset(ids, (ids * 3 + 1) % 32)


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def cross_entropy(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def loss_of(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    if torch.cuda.is_available():
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model = make_model().to(device)
    model.forward = model.lower if rank == 0 else model.upper
    delattr(model, "norm" if rank == 0 else "fc")
    optimizer = make_optimizer(model.parameters())
    stage = PipelineStage(model, rank, world, torch.device(device))
    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=cross_entropy)
    for ids, labels in DataLoader(make_data(), BATCH):
        optimizer.zero_grad()
        schedule.step(*([ids.to(device)] if rank == 0 else []), target=labels.to(device))
        if right:
            dist.all_reduce(model.embed.weight.grad)
        optimizer.step()
        record(model)


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
