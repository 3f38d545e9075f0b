# world 4, ranks 0 1, kind shape, sweep
# Rank 1 freezes a layer ahead of DDP, rank 0 does not.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)).to(device)
if not CLEAN and rank == 1:
    model[0].requires_grad_(False)
model = torch.nn.parallel.DistributedDataParallel(model)  # fault
for _ in range(2):
    model(torch.randn(8, 64, device=device)).sum().backward()  # fault
dist.destroy_process_group()
