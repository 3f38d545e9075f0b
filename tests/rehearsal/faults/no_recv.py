# world 4, ranks 0 1 2 3, kind alone, sweep
# Rank 1 does not receive what rank 0 sends.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
out = torch.ones(4, device=device)
if rank < world - 1:
    dist.send(out, rank + 1)  # fault
if rank > (0 if CLEAN else 1):
    dist.recv(out, rank - 1)  # fault
dist.barrier()  # fault
dist.destroy_process_group()
