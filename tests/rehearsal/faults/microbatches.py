# world 2, ranks 0 1, kind alone, sweep
# Stages of a pipeline part their batch into another number of microbatches.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

rank, world, device = begin()
part = nn.Linear(16, 16).to(device)
stage = PipelineStage(part, rank, world, device)
count = 4 if rank == 0 or CLEAN else 2
schedule = ScheduleGPipe(stage, n_microbatches=count, loss_fn=lambda out, target: out.pow(2).mean())
for _step in range(2):
    if rank == 0:
        schedule.step(batch(device, size=8))  # fault
    else:
        schedule.step(target=batch(device, size=8))  # fault
dist.destroy_process_group()
