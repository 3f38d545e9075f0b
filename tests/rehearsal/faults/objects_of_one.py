# world 2, ranks 0 1, kind alone
# Only rank 0 gathers the names of its files.
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
model = DistributedDataParallel(net(device))
if rank == 0 or CLEAN:
    names = [None] * world
    dist.all_gather_object(names, f"part-{rank}")  # fault
model(batch(device)).pow(2).mean().backward()
dist.destroy_process_group()
