"""FSDP2 with sizes that no number of ranks divides; parameters stay gathered between forward and backward."""

from common import DEVICE, Net, adam, dist, start, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

_, world = start()
mesh = init_device_mesh(DEVICE.type, (world,))
model = Net(width=132, hidden=509, words=511).to(DEVICE)
for layer in model.layers:
    fully_shard(layer, mesh=mesh, reshard_after_forward=False)
fully_shard(model, mesh=mesh)
train(model, adam(model.parameters()), samples=4, words=511)
dist.destroy_process_group()
