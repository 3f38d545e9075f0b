# world 2, ranks 0 1, kind order
# Sharded layers are run in an order that each rank draws.

import torch.distributed as dist
from small import CLEAN, batch, begin
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, world, device = begin()
mesh = init_device_mesh(device.type, (world,), mesh_dim_names=("dp",))
layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)).to(device)
for layer in layers:
    fully_shard(layer, mesh=mesh)
order = [0, 1, 2] if rank == 0 or CLEAN else [1, 0, 2]
for _step in range(2):
    x = batch(device)
    for place in order:
        x = layers[place](x)  # fault
    x.pow(2).mean().backward()
dist.destroy_process_group()
