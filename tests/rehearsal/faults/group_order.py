# world 4, ranks 0 3, kind groups
# Each rank makes its own pair first.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
pairs = [[0, 1], [2, 3]]
if rank >= 2 and not CLEAN:
    pairs.reverse()
groups = [dist.new_group(pair) for pair in pairs]  # fault
mine = next(group for group, pair in zip(groups, pairs, strict=True) if rank in pair)
dist.all_reduce(torch.ones(1, device=device), group=mine)
dist.destroy_process_group()
