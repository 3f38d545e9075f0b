"""Data parallel: two buckets, buffers, gradients accumulated over two batches, a metric."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
else:
    device = torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
torch.manual_seed(0)
layers = [nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 8)]
model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=1)
torch.manual_seed(1 + dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    for part in range(2):
        with model.no_sync() if part == 0 else contextlib.nullcontext():
            loss = model(torch.randn(4, 512, device=device)).pow(2).mean()
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    largest = loss.detach().clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    if step == 1:
        dist.barrier()
dist.destroy_process_group()
