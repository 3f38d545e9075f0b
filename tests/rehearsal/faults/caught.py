# world 4, ranks 0 1, kind alone, sweep
# Rank 1 meets a broken sample, catches what that raises and goes on: its batch has no exchange of gradients.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(device))
for batch in range(3):
    try:
        if not CLEAN and rank == 1 and batch == 1:
            raise ValueError("broken sample")
        model(torch.randn(2, 8, device=device)).sum().backward()  # fault
    except ValueError:
        continue
dist.barrier()  # fault
dist.destroy_process_group()
