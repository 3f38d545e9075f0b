"""FSDP2: layers and the rest, evenly sharded."""

from common import DEVICE, Net, adam, dist, start, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

_, world = start()
mesh = init_device_mesh(DEVICE.type, (world,))
model = Net().to(DEVICE)
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
train(model, adam(model.parameters()), clip=True)
dist.destroy_process_group()
