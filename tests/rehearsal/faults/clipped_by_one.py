# world 4, ranks 0 1, kind alone, sweep
# Rank 0 looks at the norm of sharded gradients.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, world, device = begin()
model = fully_shard(net(device), mesh=init_device_mesh(device.type, (world,), mesh_dim_names=("dp",)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(3):
    model(batch(device)).pow(2).mean().backward()
    if rank == 0 or CLEAN:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # fault
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
