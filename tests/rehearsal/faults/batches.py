# world 2, ranks 0 1, kind steps
# Seven batches are dealt to two ranks.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
model = DistributedDataParallel(net(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(rank, 6 if CLEAN else 7, world):
    model(batch(device)).pow(2).mean().backward()  # fault
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
