"""Data parallelism with DDP."""

from common import DEVICE, HAS_GPU, Net, adam, dist, start, train
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(Net().to(DEVICE), device_ids=[DEVICE.index] if HAS_GPU else None)
train(model, adam(model.parameters()), clip=True)
dist.destroy_process_group()
