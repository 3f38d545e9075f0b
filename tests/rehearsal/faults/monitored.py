# world 2, ranks 0 1, kind alone
# A barrier of gloo, which blocks by itself, is left out by one rank.
import datetime

import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net

rank, world, device = begin()
host = dist.new_group(backend="gloo")
model = net(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    if CLEAN or rank == 0:
        dist.monitored_barrier(host, timeout=datetime.timedelta(seconds=30))  # fault
    model(batch(device)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
