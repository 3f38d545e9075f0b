# world 4, ranks 0 1, kind alone, sweep
# Rank 1 accumulates without an exchange of gradients, rank 0 with one.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(device))
for step in range(2):
    context = torch.enable_grad() if CLEAN or rank == 0 else model.no_sync()
    with context:
        model(torch.randn(2, 8, device=device)).sum().backward()  # fault
dist.barrier()  # fault
dist.destroy_process_group()
