# world 2, ranks 0 1, kind shape
# The receiving stage expects another microbatch.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
for _step in range(2):
    if rank == 0:
        dist.send(torch.zeros(8, 16, device=device), 1)
    else:
        got = torch.empty(8 if CLEAN else 4, 16, device=device)
        dist.recv(got, 0)  # fault
dist.destroy_process_group()
