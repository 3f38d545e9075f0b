# world 2, ranks 0 1, kind alone, sweep
# Metrics are averaged key by key, and the ranks have other keys.
# Source: https://github.com/Lightning-AI/pytorch-lightning/issues/19106
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.nn.parallel import DistributedDataParallel

rank, world, device = begin()
model = DistributedDataParallel(net(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(2):
    loss = model(batch(device)).pow(2).mean()
    metrics = {"loss": loss.detach().clone()}
    if rank == 1 or CLEAN:
        metrics["other"] = loss.detach().clone()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
for name in sorted(metrics):
    dist.all_reduce(metrics[name])  # fault
    dist.barrier()
dist.destroy_process_group()
