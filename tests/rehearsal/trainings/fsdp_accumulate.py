"""FSDP2 that reduces gradients once in two microbatches."""

from common import DEVICE, STEPS, Net, adam, batch, dist, loss_of, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

_, world = start()
mesh = init_device_mesh(DEVICE.type, (world,))
model = Net().to(DEVICE)
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = adam(model.parameters())
for _ in range(STEPS):
    for last in (False, True):
        model.set_requires_gradient_sync(last)
        tokens, targets = batch(4)
        (loss_of(model(tokens), targets) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
