# world 2, ranks 0 1, kind deadlock
# Two groups of the same ranks are used in another order on each.
import torch.distributed as dist
from small import CLEAN, batch, begin, net

rank, world, device = begin()
data = dist.new_group(list(range(world)), group_desc="data")
model_parts = dist.new_group(list(range(world)), group_desc="model")
model = net(device)
for _step in range(2):
    out = model(batch(device)).detach()
    if rank == 0 or CLEAN:
        dist.all_reduce(out, group=data)  # fault
        dist.all_reduce(out, group=model_parts)
    else:
        dist.all_reduce(out, group=model_parts)  # fault
        dist.all_reduce(out, group=data)
dist.destroy_process_group()
