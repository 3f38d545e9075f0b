"""Tensor parallelism of the wide products within FSDP2."""

from common import DEVICE, Net, adam, dist, start, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

_, world = start()
mesh = init_device_mesh(DEVICE.type, (world // 2, 2), mesh_dim_names=("data", "tensor"))
model = Net().to(DEVICE)
for layer in model.layers:
    parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(layer, mesh=mesh["data"])
fully_shard(model, mesh=mesh["data"])
train(model, adam(model.parameters()))
dist.destroy_process_group()
