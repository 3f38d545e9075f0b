"""Ranks that train one model ("ddp", "by_hand", "weights"), or one each ("plain", "never", "logged", "buffers")."""

import os
import sys

import torch
import torch.distributed as dist

kind = sys.argv[1]
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
if kind != "plain":
    dist.init_process_group("nccl")
layers = [torch.nn.Linear(8, 8), *([torch.nn.BatchNorm1d(8)] if kind == "buffers" else [])]
model = torch.nn.Sequential(*layers).to(device)
if kind in ("ddp", "never", "buffers"):
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.require_backward_grad_sync = kind == "ddp"
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(4, 8).to(device)).square().mean()
    loss.backward()
    if kind == "by_hand":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    if kind == "weights":
        for parameter in model.parameters():
            dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)
    if kind == "logged":
        dist.all_reduce(loss.detach())
    optimizer.zero_grad()
