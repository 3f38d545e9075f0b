"""torch.compile around a DDP model, with regional compilation of blocks, CUDA graphs asked for by mode."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_float32_matmul_precision("high")
torch._dynamo.config.cache_size_limit = 64
torch._inductor.config.coordinate_descent_tuning = True


class Block(nn.Module):
    def __init__(self, d=768):
        super().__init__()
        self.n = nn.LayerNorm(d)
        self.w = nn.Linear(d, 4 * d)
        self.v = nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.v(F.gelu(self.w(self.n(x))))


@torch.compile
def fused_loss(logits, target):
    return F.cross_entropy(logits.float(), target)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = nn.Sequential(nn.Embedding(8192, 768), *[Block() for _ in range(8)], nn.Linear(768, 8192)).cuda()
    if "regional" in sys.argv:
        for block in model:
            if isinstance(block, Block):
                block.compile(fullgraph=True)
        model = DDP(model, device_ids=[local])
    else:
        model = torch.compile(DDP(model, device_ids=[local]), mode="max-autotune-no-cudagraphs")
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3), fused=True)
    opt_step = torch.compile(optimizer.step) if "optimizer" in sys.argv else optimizer.step
    for step in range(3):
        x = torch.randint(0, 8192, (8, 512), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = fused_loss(model(x).view(-1, 8192), x.view(-1))
        loss.backward()
        opt_step()
        optimizer.zero_grad(set_to_none=True)
        if dist.get_rank() == 0:
            print(f"iteration {step} loss {loss.item():.4f} compiled={hasattr(model, '_orig_mod')}", flush=True)
    torch.compiler.reset()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
