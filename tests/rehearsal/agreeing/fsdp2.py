"""Sharded data parallel on a mesh of 2 x 2: layers of uneven sizes, clipped gradients, a full state at the end."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
else:
    device = torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
torch.manual_seed(0)
mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("replicate", "shard"))
blocks = [nn.Sequential(nn.Linear(33, 65), nn.ReLU(), nn.Linear(65, 33)) for _ in range(3)]
model = nn.Sequential(*blocks, nn.Linear(33, 5)).to(device)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in blocks:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
torch.manual_seed(1 + dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _step in range(2):
    model(torch.randn(4, 33, device=device)).float().pow(2).mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
dist.destroy_process_group()
