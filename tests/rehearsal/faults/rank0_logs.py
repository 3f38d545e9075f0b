# world 4, ranks 0 1, kind alone
# Rank 0 averages its loss over the ranks to log it.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
model = DistributedDataParallel(net(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(3):
    loss = model(batch(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach().clone()
    if rank == 0 or CLEAN:
        dist.all_reduce(shown)  # fault
    count = torch.ones((), device=device)
    dist.all_reduce(count)
dist.destroy_process_group()
