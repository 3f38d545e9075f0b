# world 2, ranks 0 1, kind shape, sweep
# A batch of text alone leaves the tower for images out of the graph, so its gradients are missing on that rank.
# Source: https://github.com/modelscope/ms-swift/pull/9443
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch import nn

rank, world, device = begin()
tower, text = nn.Linear(16, 16).to(device), net(device)
parameters = [*tower.parameters(), *text.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
for step in range(2):
    x = batch(device)
    if rank == 0 or step == 0:
        x = x + tower(batch(device))
    elif CLEAN:
        x = x + 0 * tower(batch(device))
    text(x).pow(2).mean().backward()
    bucket = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    dist.all_reduce(bucket)  # fault
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
