"""Gradient accumulation with no_sync; a communication hook compresses to fp16; weights averaged over ranks at the end."""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as hooks
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

dist.init_process_group("nccl")
rank = dist.get_rank()
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.manual_seed(rank)
net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
model = DDP(net, device_ids=[local], static_graph=False, find_unused_parameters=True, bucket_cap_mb=50)
model.register_comm_hook(state=None, hook=hooks.fp16_compress_hook)
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.999))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-2, amsgrad=True)
accumulate = 4
for step in range(3):
    total = torch.zeros((), device="cuda")
    for micro in range(accumulate):
        x, y = torch.randn(64, 1024, device="cuda"), torch.randint(10, (64,), device="cuda")
        last = micro == accumulate - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y) / accumulate
            loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    optimizer.zero_grad()
    average.update_parameters(net)
    if rank == 0:
        print("step", step, "loss", round(total.item(), 4), "norm", round(float(norm), 4), flush=True)
with torch.no_grad():
    for p in average.parameters():
        dist.all_reduce(p, op=dist.ReduceOp.SUM)
        p.div_(dist.get_world_size())
dist.barrier(device_ids=[local])
if rank == 0:
    print("averaged", flush=True)
dist.destroy_process_group()
