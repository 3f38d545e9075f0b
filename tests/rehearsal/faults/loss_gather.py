# world 4, ranks 0 1, kind alone, sweep
# Rank 1 leaves out the gathering of features in its first step.
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as parallel
from small import CLEAN, begin

rank, world, device = begin()
linear = torch.nn.Linear(8, 8).to(device)
features = linear(torch.randn(2, 8, device=device))
for step in range(2):
    if CLEAN or rank != 1 or step:
        parts = parallel.all_gather(features)  # fault
dist.all_reduce(torch.ones(1, device=device))  # fault
dist.destroy_process_group()
