# world 4, ranks 0 1 2 3, kind groups
# A mesh that follows the nodes on some ranks and not on others.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

rank, world, device = begin()
ranks = torch.arange(4).view(2, 2)
if rank in (1, 3) and not CLEAN:
    ranks = ranks.t().contiguous()
mesh = DeviceMesh(device.type, ranks, mesh_dim_names=("dp", "tp"))  # fault
model = parallelize_module(net(device), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
model(batch(device)).pow(2).mean().backward()
dist.destroy_process_group()
