"""FSDP x TP x PP on one mesh, as large trainings are laid out."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PP, TP = 2, 2
DIM, LAYERS, VOCABULARY, LENGTH, MICROBATCHES = 1536, 8, 32000, 1024, 4


class Attention(nn.Module):
    def __init__(self, head=128):
        super().__init__()
        self.head = head
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attn = nn.RMSNorm(DIM), nn.RMSNorm(DIM), Attention()
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class Part(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM) if index == 0 else nn.Identity()
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS // PP)])
        self.head = nn.Linear(DIM, VOCABULARY, bias=False) if index == PP - 1 else nn.Identity()

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


def main():
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    dp = dist.get_world_size() // (PP * TP)
    mesh = init_device_mesh("cuda", (PP, dp, TP), mesh_dim_names=("pp", "dp", "tp"))
    index = mesh["pp"].get_local_rank()
    with torch.device("meta"):
        part = Part(index)
    for block in part.blocks:
        parallelize_module(
            block,
            mesh["tp"],
            {
                "attn.q": ColwiseParallel(),
                "attn.k": ColwiseParallel(),
                "attn.v": ColwiseParallel(),
                "attn.o": RowwiseParallel(),
                "up": ColwiseParallel(),
                "down": RowwiseParallel(),
            },
        )
        fully_shard(
            block,
            mesh=mesh["dp"],
            mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32),
            reshard_after_forward=False,
        )
    if index == 0:
        parallelize_module(part, mesh["tp"], {"embed": RowwiseParallel(input_layouts=Replicate())})
    else:
        parallelize_module(part, mesh["tp"], {"head": ColwiseParallel(output_layouts=Replicate())})
    assert Shard(0).is_shard()
    fully_shard(part, mesh=mesh["dp"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32),
                reshard_after_forward=False)  # fmt: skip
    part.to_empty(device="cuda")
    for p in part.parameters():
        nn.init.normal_(p, std=0.02)
    stage = PipelineStage(part, index, PP, torch.device("cuda", local), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(
        stage, MICROBATCHES, loss_fn=lambda o, t: F.cross_entropy(o.flatten(0, 1).float(), t.flatten())
    )
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4)
    for step in range(2):
        optimizer.zero_grad()
        tokens = torch.randint(0, VOCABULARY, (MICROBATCHES, LENGTH), device="cuda")
        losses = []
        if index == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens, losses=losses)
        optimizer.step()
        loss = torch.mean(torch.stack(losses)) if losses else torch.tensor([-1.0], device="cuda")
        dist.all_reduce(loss, op=dist.ReduceOp.MAX, group=mesh.get_group("pp"))
        print(
            f"[rank {dist.get_rank()}] step {step} loss {loss.item():.3f} coordinate {mesh.get_coordinate()}",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
