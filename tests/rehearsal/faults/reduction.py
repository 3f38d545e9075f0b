# world 2, ranks 0 1, kind reduction
# One rank asks for the largest of the norms, the other for their sum.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net

rank, world, device = begin()
model = net(device)
for _step in range(2):
    model(batch(device)).pow(2).mean().backward()
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).sum()
    operation = dist.ReduceOp.MAX if rank == 0 or CLEAN else dist.ReduceOp.SUM
    dist.all_reduce(norm, op=operation)  # fault
dist.destroy_process_group()
