"""A pipeline of four stages, one forward one backward."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
else:
    device = torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
torch.manual_seed(0)
rank, world = dist.get_rank(), dist.get_world_size()
widths = [16, 24, 40, 8, 4]
part = nn.Sequential(nn.Linear(widths[rank], widths[rank + 1]), nn.ReLU()).to(device)
stage = PipelineStage(part, rank, world, device)
schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=lambda out, target: (out - target).pow(2).mean())
torch.manual_seed(1 + dist.get_rank())
optimizer = torch.optim.SGD(part.parameters(), lr=1e-3)
for _step in range(2):
    if rank == 0:
        schedule.step(torch.randn(16, 16, device=device))
    elif rank == world - 1:
        schedule.step(target=torch.randn(16, 4, device=device))
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
