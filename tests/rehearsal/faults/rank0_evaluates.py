# world 4, ranks 0 2, kind alone, sweep
# Rank 0 alone evaluates with the wrapped model, which broadcasts its buffers in each forward.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
model = DistributedDataParallel(nn.Sequential(net(device), nn.BatchNorm1d(4).to(device)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _epoch in range(2):
    for _step in range(2):
        model(batch(device)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            (model.module if CLEAN else model)(batch(device))  # fault
        model.train()
dist.destroy_process_group()
