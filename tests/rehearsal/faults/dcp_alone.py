# world 4, ranks 0 1, kind alone, sweep
# Rank 0 alone saves a checkpoint that all ranks write.
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small import CLEAN, begin

rank, world, device = begin()
model = torch.nn.Linear(4, 4).to(device)
if CLEAN or rank == 0:
    dcp.save({"model": model.state_dict()}, checkpoint_id=tempfile.mkdtemp())  # fault
dist.all_reduce(torch.ones(1, device=device))  # fault
dist.destroy_process_group()
