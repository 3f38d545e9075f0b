# world 4, ranks 0 1, kind alone
# The others wait until rank 0 has prepared the data, which does not tell them.
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
if rank != 0:
    dist.barrier()  # fault
elif CLEAN:
    dist.barrier()
model = DistributedDataParallel(net(device))
model(batch(device)).pow(2).mean().backward()
dist.destroy_process_group()
