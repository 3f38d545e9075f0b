# world 4, ranks 0 1 2, kind groups
# Only the members of a group ask for it, so that the ranks count the next one differently.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
first = None
if rank < 2 or CLEAN:
    first = dist.new_group([0, 1])  # fault
if rank < 2:
    dist.all_reduce(torch.ones(1, device=device), group=first)
everyone = dist.new_group([0, 1, 2, 3])
dist.all_reduce(torch.ones(1, device=device), group=everyone)
dist.destroy_process_group()
