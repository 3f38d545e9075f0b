# world 2, ranks 0 1, kind alone
# A pipeline by hand whose last stage runs fewer microbatches.
import torch
import torch.distributed as dist
from small import CLEAN, begin
from torch import nn

rank, world, device = begin()
part = nn.Linear(16, 16).to(device)
count = 4 if rank == 0 or CLEAN else 3
for _microbatch in range(count):
    if rank == 0:
        out = part(torch.randn(2, 16, device=device)).detach()
        dist.send(out, 1)  # fault
    else:
        got = torch.empty(2, 16, device=device)
        dist.recv(got, 0)
        part(got)
dist.destroy_process_group()
