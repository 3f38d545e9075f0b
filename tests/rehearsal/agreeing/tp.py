"""Tensor parallel with sequence parallel on a mesh of 2 x 2, gradients averaged over the other dimension."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
else:
    device = torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Embedding(50, 32), Block(), Block(), nn.Linear(32, 50)).to(device)
plan = {
    "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "3": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}
for place in ("1", "2"):
    plan |= {
        f"{place}.norm": SequenceParallel(),
        f"{place}.up": ColwiseParallel(input_layouts=Shard(1)),
        f"{place}.down": RowwiseParallel(output_layouts=Shard(1)),
        place: PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),), use_local_output=True),
    }
parallelize_module(model, mesh["tp"], plan)
torch.manual_seed(1 + dist.get_rank())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _step in range(2):
    tokens = torch.randint(50, (2, 8), device=device)
    model(tokens).float().pow(2).mean().backward()
    for parameter in model.parameters():
        local = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
        dist.all_reduce(local, group=mesh.get_group("dp"))
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
