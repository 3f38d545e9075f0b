# world 2, ranks 0 1, kind steps, sweep
# Gradients are accumulated over two batches, counted from another one on each rank.
import contextlib

import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
model = DistributedDataParallel(net(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(5):
    last = (number + (0 if CLEAN else rank)) % 2 == 1
    with contextlib.nullcontext() if last else model.no_sync():
        model(batch(device)).pow(2).mean().backward()  # fault
    if last:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
