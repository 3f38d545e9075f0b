# world 4, ranks 0 1, kind root
# Every rank broadcasts its own.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
seed = torch.zeros(1, dtype=torch.int64, device=device)
dist.broadcast(seed, 0 if CLEAN else rank)  # fault
dist.destroy_process_group()
