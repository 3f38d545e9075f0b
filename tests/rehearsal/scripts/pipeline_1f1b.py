"""1F1B over four stages with data parallel by hand beside it; each stage is built on its own rank."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

parser = argparse.ArgumentParser()
parser.add_argument("--stages", type=int, default=4)
parser.add_argument("--microbatches", type=int, default=8)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
args = parser.parse_args()
VOCABULARY, DEPTH, LENGTH, MICRO = 32000, 16, 1024, 2


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stage(nn.Module):
    def __init__(self, index, count, width):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width) if index == 0 else None
        self.blocks = nn.ModuleList([Block(width) for _ in range(DEPTH // count)])
        self.head = nn.Linear(width, VOCABULARY) if index == count - 1 else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def loss_fn(output, target):
    return F.cross_entropy(output.flatten(0, 1).float(), target.flatten())


dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
mesh = init_device_mesh("cuda", (world // args.stages, args.stages), mesh_dim_names=("dp", "pp"))
pp, dp = mesh.get_group("pp"), mesh.get_group("dp")
index = dist.get_rank(pp)
module = Stage(index, args.stages, args.width).to(device=device, dtype=torch.bfloat16)
stage = PipelineStage(module, index, args.stages, device, group=pp)
kind = Schedule1F1B if args.schedule == "1f1b" else ScheduleGPipe
schedule = kind(stage, n_microbatches=args.microbatches, loss_fn=loss_fn)
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
print(
    f"rank {rank}: stage {index} of {args.stages}, {sum(p.numel() for p in module.parameters()) / 1e6:.0f}M", flush=True
)
for step in range(2):
    x = torch.randint(0, VOCABULARY, (args.microbatches * MICRO, LENGTH), device=device)
    y = torch.randint(0, VOCABULARY, (args.microbatches * MICRO, LENGTH), device=device)
    losses = []
    if index == 0:
        schedule.step(x)
    elif index == args.stages - 1:
        schedule.step(target=y, losses=losses)
    else:
        schedule.step()
    if dist.get_world_size(dp) > 1:
        for p in module.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=dp)
    optimizer.step()
    optimizer.zero_grad()
    if index == args.stages - 1:
        print(f"rank {rank}: step {step} loss {torch.stack(losses).mean().item():.3f}", flush=True)
dist.barrier()
print(f"rank {rank}: done, {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", flush=True)
dist.destroy_process_group()
