# world 2, ranks 0 1, kind alone
# A sharded head is called as often as its rank's input asks for.
# Source: https://github.com/deepspeedai/DeepSpeed/issues/7998
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, world, device = begin()
mesh = init_device_mesh(device.type, (world,), mesh_dim_names=("dp",))
trunk = fully_shard(net(device), mesh=mesh, reshard_after_forward=True)
head = fully_shard(nn.Linear(4, 4).to(device), mesh=mesh, reshard_after_forward=True)
with torch.no_grad():
    for _step in range(2):
        x = trunk(batch(device))
        for _time in range(1 if rank == 0 or CLEAN else 3):
            x = head(x)  # fault
dist.destroy_process_group()
