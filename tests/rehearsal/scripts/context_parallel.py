"""Long sequences over ranks: ring attention by torch.distributed.tensor.experimental.context_parallel, FSDP2 below."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

DIM, HEADS, DEPTH, VOCABULARY, LENGTH = 1024, 16, 4, 8192, 16384


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, DIM)
        self.position = nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.out = nn.Linear(DIM, VOCABULARY)

    def forward(self, tokens, places):
        x = self.token(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("dp", "cp"))
    mesh[("dp", "cp")]._flatten("dp_cp")
    model = Model().to("cuda", dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp_cp"])
    fully_shard(model, mesh=mesh["dp_cp"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    set_rotate_method("allgather")
    for step in range(2):
        tokens = torch.randint(0, VOCABULARY, (1, LENGTH), device="cuda")
        labels = torch.randint(0, VOCABULARY, (1, LENGTH), device="cuda")
        places = torch.arange(LENGTH, device="cuda").unsqueeze(0)
        with (
            sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]),
            context_parallel(
                mesh["cp"],
                buffers=[tokens, labels, places],
                buffer_seq_dims=[1, 1, 1],
                no_restore_buffers={tokens, labels, places},
            ),
        ):
            loss = F.cross_entropy(model(tokens, places).flatten(0, 1), labels.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=mesh["cp"].get_group())
        if dist.get_rank() == 0:
            print(f"step {step} tokens/rank {tokens.numel()} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


main()
