# world 4, ranks 0 1 2 3, kind alone, sweep
# A branch by random numbers that are seeded with the rank.
import random

import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
random.seed(0 if CLEAN else rank)
model = DistributedDataParallel(net(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(3):
    model(batch(device)).pow(2).mean().backward()
    if random.random() < 0.5:
        noise = torch.randn(16, device=device)
        dist.broadcast(noise, 0)  # fault
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
