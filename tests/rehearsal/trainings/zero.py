"""DDP with the optimizer's state sharded over ranks (ZeRO-1)."""

import torch
from common import DEVICE, Net, dist, start, train
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(Net(width=192, hidden=768).to(DEVICE))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, foreach=True)
train(model, optimizer)
dist.destroy_process_group()
