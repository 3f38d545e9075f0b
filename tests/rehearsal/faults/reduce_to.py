# world 4, ranks 0 1, kind root, sweep
# Every second rank takes another root.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
loss = torch.ones(1, device=device)
dist.reduce(loss, 0 if CLEAN else rank % 2)  # fault
dist.destroy_process_group()
