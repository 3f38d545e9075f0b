# world 4, ranks 0 3, kind shape, sweep
# The last rank's last batch is smaller, and all gather.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
rows = 8 if CLEAN or rank < world - 1 else 5
mine = torch.ones(rows, 10, device=device)
out = [torch.empty_like(mine) for _ in range(world)]
dist.all_gather(out, mine)  # fault
dist.destroy_process_group()
