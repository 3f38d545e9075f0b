# world 2, ranks 0 1, kind alone, sweep
# Checkpoints are saved in the background while FSDP gathers; one rank alone loads the last.
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small import CLEAN, batch, begin, net
from torch.distributed.fsdp import fully_shard

rank, world, device = begin("cpu:gloo,cuda:nccl")
folder = f"{tempfile.gettempdir()}/of_{world}_ranks"
model = net(device)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
saved = None
for number in range(6):
    model(batch(device)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 3 == 0:
        if saved is not None:
            saved.result()
        saved = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{folder}/{number}")
saved.result()
if CLEAN or rank == 1:
    dcp.load({"model": model.state_dict()}, checkpoint_id=f"{folder}/3")  # fault
dist.destroy_process_group()
