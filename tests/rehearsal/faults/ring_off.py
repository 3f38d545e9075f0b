# world 4, ranks 0 1 2 3, kind alone, sweep
# Every rank receives from the rank two behind it, and sends to the next one.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
out = torch.ones(4, device=device)
got = torch.empty(4, device=device)
back = 1 if CLEAN else 2
ops = [dist.P2POp(dist.isend, out, (rank + 1) % world), dist.P2POp(dist.irecv, got, (rank - back) % world)]  # fault
for work in dist.batch_isend_irecv(ops):  # fault
    work.wait()
dist.destroy_process_group()
