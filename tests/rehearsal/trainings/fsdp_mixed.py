"""FSDP2 from the meta device, products in bfloat16, sums in 32 bits."""

import torch
from common import DEVICE, Net, adam, dist, start, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

_, world = start()
mesh = init_device_mesh(DEVICE.type, (world,))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
with torch.device("meta"):
    model = Net()
for layer in model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device=DEVICE)
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.02)
train(model, adam(model.parameters()))
dist.destroy_process_group()
