# world 4, ranks 0 1, kind ended
# A rank that has seen enough leaves by itself.
import sys

import torch
from small import CLEAN, batch, begin, net
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
model = DistributedDataParallel(net(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    if step == 2 and (rank == 1 or CLEAN):
        sys.exit(0)  # fault
    model(batch(device)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
