# world 2, ranks 0 1, kind order, sweep
# Sharded layers are run in another order on rank 1.

import torch
import torch.distributed as dist
from small import CLEAN, batch, begin
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor, order: list[int]) -> torch.Tensor:
        for place in order:
            x = self.layers[place](x)  # fault
        return x


rank, world, device = begin()
mesh = init_device_mesh(device.type, (world,), mesh_dim_names=("dp",))
model = Model().to(device)
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(2):
    model(batch(device), [0, 1, 2] if rank == 0 or CLEAN else [1, 0, 2]).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
