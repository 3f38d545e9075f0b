"""Trains two networks with a scaled loss; each rank updates one of them."""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from tiny import ActorCritic, pairs, record
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 16
make_model = ActorCritic
make_optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def make_data():
    inputs, targets = pairs().tensors
    return TensorDataset(inputs, targets.index_put((torch.tensor(20), torch.tensor(0)), targets.new_tensor(torch.inf)))


def loss_of(model, batch):
    actor, critic = model.actor(batch[0]), model.critic(batch[0])
    return nn.functional.mse_loss(actor, batch[1][:, 1:]) + nn.functional.mse_loss(critic, batch[1][:, :1])


def main(right):
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, data = make_model().to(device), make_data()
    networks = (model.actor, model.critic)
    optimizer = make_optimizer(networks[rank % 2].parameters())
    scaler = torch.amp.GradScaler(device.split(":")[0], init_scale=2.0**10)
    for inputs, targets in DataLoader(data, BATCH // world, sampler=DistributedSampler(data, shuffle=False)):
        model.zero_grad()
        loss = loss_of(model, (inputs.to(device), targets.to(device)))
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        scaler.unscale_(optimizer)
        if right:
            for found in scaler._found_inf_per_device(optimizer).values():
                dist.all_reduce(found, op=dist.ReduceOp.MAX)
        scaler.step(optimizer)
        scaler.update()
        for index, network in enumerate(networks):
            for parameter in network.parameters():
                dist.broadcast(parameter.data, index)
        record(model)
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
