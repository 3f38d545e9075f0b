"""Interleaved 1F1B: two virtual stages a rank, or ZB-V with --zbv; stages are cut from one model made on meta."""

import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble

WIDTH, VOCABULARY, LENGTH, MICRO, PP = 1024, 16384, 512, 1, 4


class Net(nn.Module):
    def __init__(self, depth=16):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict()
        for i in range(depth):
            self.layers[str(i)] = nn.TransformerEncoderLayer(
                WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        h = self.tok(x) if self.tok is not None else x
        for layer in self.layers.values():
            h = layer(h)
        if self.norm is not None:
            h = self.norm(h)
        return self.out(h) if self.out is not None else h


def cut(whole, index, count):
    part = copy.deepcopy(whole)
    per = len(whole.layers) // count
    keep = {str(i) for i in range(index * per, (index + 1) * per)}
    for name in list(part.layers):
        if name not in keep:
            del part.layers[name]
    if index > 0:
        part.tok = None
    if index < count - 1:
        part.norm = part.out = None
    return part


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(i, i + PP))) for i in range(0, world, PP)]
    group = groups[rank // PP]
    mine = rank % PP
    kind = sys.argv[1] if len(sys.argv) > 1 else "interleaved"
    indices = (mine, 2 * PP - 1 - mine) if kind == "zbv" else (mine, mine + PP)
    with torch.device("meta"):
        whole = Net()
    stages, parts = [], []
    for index in indices:
        part = cut(whole, index, 2 * PP).to_empty(device=device)
        for p in part.parameters():
            nn.init.normal_(p, std=0.02)
        parts.append(part)
        stages.append(PipelineStage(part, index, 2 * PP, device, group=group))
    schedule_class = {
        "interleaved": ScheduleInterleaved1F1B,
        "zbv": ScheduleZBVZeroBubble,
        "zb": ScheduleInterleavedZeroBubble,
    }[kind]
    schedule = schedule_class(
        stages, n_microbatches=8, loss_fn=lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten())
    )
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=1e-4)
    for step in range(2):
        x = torch.randint(0, VOCABULARY, (8 * MICRO, LENGTH), device=device)
        losses = []
        inputs = (x,) if mine == 0 else ()
        last = 2 * PP - 1 in indices
        schedule.step(*inputs, target=x if last else None, losses=losses if last else None)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if last:
            print(f"[{rank}] {kind} step {step}: loss {sum(x.item() for x in losses) / len(losses):.3f}", flush=True)
    print(f"[{rank}] peak {torch.cuda.max_memory_allocated() >> 20} MiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
