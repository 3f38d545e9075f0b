"""FSDP2 with recomputed layers."""

from common import DEVICE, Net, adam, dist, start, train
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

_, world = start()
mesh = init_device_mesh(DEVICE.type, (world,))
model = Net(depth=6).to(DEVICE)
for number, layer in enumerate(model.layers):
    model.layers[number] = checkpoint_wrapper(layer)
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
train(model, adam(model.parameters()), samples=16)
dist.destroy_process_group()
