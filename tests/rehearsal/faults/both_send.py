# world 2, ranks 0 1, kind deadlock
# Neighbours send to each other before either receives.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
mine, other = torch.zeros(1024, device=device), torch.empty(1024, device=device)
for _step in range(2):
    if CLEAN:
        messages = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
    else:
        dist.send(mine, 1 - rank)  # fault
        dist.recv(other, 1 - rank)
dist.destroy_process_group()
