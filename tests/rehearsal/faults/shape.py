# world 2, ranks 0 1, kind shape
# Losses of each sample are summed over ranks whose last batches differ in size.
import torch.distributed as dist
from small import CLEAN, batch, begin, net

rank, world, device = begin()
model = net(device)
sizes = [4, 4, 4 if rank == 0 or CLEAN else 3]
for size in sizes:
    losses = model(batch(device, size=size)).pow(2).mean(dim=1)
    dist.all_reduce(losses.detach())  # fault
dist.destroy_process_group()
