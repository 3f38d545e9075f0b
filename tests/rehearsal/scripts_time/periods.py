"""Steps that do not all exchange the same: `periods.py KIND EVERY`."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

kind, every = sys.argv[1], int(sys.argv[2])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
network = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).to(device)
parameters = list(network.parameters())
model = network
if kind in ("accumulated", "static"):
    model = DistributedDataParallel(network, static_graph=kind == "static")
elif kind == "static halves":
    model = nn.Sequential(*(DistributedDataParallel(half, static_graph=True) for half in (network[:5], network[5:])))
optimizer = torch.optim.SGD(parameters, lr=0.1)
under_way = []


def average(tensors) -> None:
    for tensor in tensors:
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)


for step in range(20):
    is_turn = step % every == every - 1
    micros = every if kind == "accumulated" else 1
    for micro in range(micros):
        with model.no_sync() if micro < micros - 1 else contextlib.nullcontext():
            model(torch.randn(256, 1024, device=device)).square().mean().backward()
    if kind == "gradients" and is_turn:
        average(one.grad for one in parameters)
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        dist.all_reduce(torch.ones(2, device=device))  # logged
    if kind == "weights" and is_turn:
        average(one.data for one in parameters)
    if kind == "sent" and is_turn:
        for work in under_way:
            work.wait()
        under_way = [dist.broadcast(one.data, src=0, async_op=True) for one in parameters]
    if kind == "validated" and is_turn:
        with torch.no_grad():
            model(torch.randn(256, 1024, device=device))
            scores = torch.randn(512, 1024, device=device)
            dist.all_gather([torch.empty_like(scores) for _ in range(8)], scores)
