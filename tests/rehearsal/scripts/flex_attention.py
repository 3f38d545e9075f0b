"""flex_attention with a block mask for packed documents, compiled as its manual says, under DDP."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.parallel import DistributedDataParallel as DDP

flex = torch.compile(flex_attention, dynamic=False)


class Block(nn.Module):
    def __init__(self, d=512, heads=8):
        super().__init__()
        self.heads = heads
        self.n, self.qkv, self.o = nn.RMSNorm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.RMSNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(flex(q, k, v, block_mask=mask).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4096, 512)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, tokens):
        documents = (tokens == 0).cumsum(1)

        def same_document(b, h, q, kv):
            return (q >= kv) & (documents[b, q] == documents[b, kv])

        mask = create_block_mask(
            same_document, tokens.size(0), None, tokens.size(1), tokens.size(1), device=tokens.device
        )
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return F.linear(x, self.embed.weight)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(Net().cuda().bfloat16(), device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(2):
        tokens = torch.randint(0, 4096, (2, 1024), device="cuda")
        loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
