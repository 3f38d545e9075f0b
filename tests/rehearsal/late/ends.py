"""An ordinary training whose fault shows after some steps; in its second argument it says how it counts them."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FAULT, COUNTED = sys.argv[1:3]
SAMPLES, BATCH, MOST = 96, 4, 12

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.side, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, batch, step):
        hidden = self.first(batch).relu()
        if FAULT != "unused" or step < 5 or rank == 0:
            hidden = hidden + self.side(hidden)
        return self.last(hidden)


def batches(epoch):
    data = TensorDataset(torch.randn(SAMPLES, 16), torch.randint(0, 4, (SAMPLES,)))
    if FAULT == "uneven":
        data = torch.utils.data.Subset(data, range(rank, SAMPLES // 2 + 4 * rank))
        loader = DataLoader(data, BATCH)
    else:
        sampler = DistributedSampler(data)
        sampler.set_epoch(epoch)
        loader = DataLoader(data, BATCH, sampler=sampler)
    return loader


model = DistributedDataParallel(Net().cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=MOST) if COUNTED == "schedule" else None
step, loader = 0, batches(0)
while step < MOST:
    source = loader if COUNTED == "loader" else [(torch.randn(BATCH, 16), torch.randint(0, 4, (BATCH,)))] * MOST
    for batch, labels in source:
        optimizer.zero_grad()
        if FAULT == "drift" and step > 3:
            model.require_backward_grad_sync = False
        outputs = model(batch.cuda(), step)
        loss = functional.cross_entropy(outputs, labels.cuda())
        loss.backward()  # backward
        if FAULT == "order" and step == 4 and rank:
            dist.all_reduce(torch.ones(3, device="cuda"))  # fault
        optimizer.step()
        if schedule is not None:
            schedule.step()
        step += 1
        if step == MOST and FAULT != "uneven":
            break
    if COUNTED == "loader" or FAULT == "uneven":
        break
if FAULT == "barrier" and rank == 0:
    dist.barrier()  # fault
if FAULT == "save" and rank == 0:
    for one in model.parameters():
        dist.all_gather([torch.empty_like(one) for _ in range(world)], one.data)  # fault
dist.destroy_process_group()
