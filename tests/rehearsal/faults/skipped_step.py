# world 2, ranks 0 1, kind steps
# A rank that meets a batch without labels goes on to its next one.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
model = DistributedDataParallel(net(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
labels = torch.zeros(4, 4, dtype=torch.long)
if rank == 1 and not CLEAN:
    labels[2] = -100
for step in range(4):
    if (labels[step] == -100).all():
        continue
    loss = model(batch(device)).pow(2).mean()
    loss.backward()  # fault
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
