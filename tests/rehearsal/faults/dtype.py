# world 2, ranks 0 1, kind type
# Rank 1 reads its count as an integer, rank 0 as a number with a fraction.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
for _step in range(2):
    kind = torch.float32 if rank == 0 or CLEAN else torch.int64
    tokens = torch.ones(1, dtype=kind, device=device)
    dist.all_reduce(tokens)  # fault
dist.destroy_process_group()
