# world 4, ranks 0 1, kind alone, sweep
# The whole state of a sharded model is gathered by rank 0 alone.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, world, device = begin()
mesh = init_device_mesh(device.type, (world,), mesh_dim_names=("dp",))
model = fully_shard(net(device), mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(batch(device)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 and (rank == 0 or CLEAN):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)  # fault
        if rank == 0:
            torch.save(state, "model.pt")
dist.destroy_process_group()
