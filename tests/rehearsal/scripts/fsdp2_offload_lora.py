"""FSDP2 with CPU offload of parameters, low-rank adapters written by hand, most weights frozen, prefetch set explicitly."""

import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor


class LoRA(nn.Module):
    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + 2.0 * self.b(self.a(x))


class Block(nn.Module):
    def __init__(self, d=1024):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = LoRA(nn.Linear(d, 4 * d)), LoRA(nn.Linear(4 * d, d))

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, depth=6, d=1024):
        super().__init__()
        self.embed = nn.Embedding(16000, d).requires_grad_(False)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.out = nn.Linear(d, 16000, bias=False)

    def forward(self, x):
        x = self.embed(x)
        for b in self.blocks:
            x = b(x)
        return self.out(x)


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    offload = CPUOffloadPolicy(pin_memory=True) if os.environ.get("OFFLOAD", "1") == "1" else OffloadPolicy()
    torch.manual_seed(0)
    model = Net()
    options = dict(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32), offload_policy=offload)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    for here, after in zip(model.blocks[:-1], model.blocks[1:], strict=True):
        here.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([here])
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    accumulate = 2
    for step in range(2):
        for micro in range(accumulate):
            last = micro == accumulate - 1
            model.set_requires_gradient_sync(last)
            model.set_is_last_backward(last)
            x = torch.randint(0, 16000, (2, 512), device="cuda")
            model.unshard()
            loss = F.cross_entropy(model(x).flatten(0, 1).float(), x.flatten()) / accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if dist.get_rank() == 0:
            kinds = {type(p).__name__ for p in model.parameters()}, isinstance(trained[0], DTensor)
            print(f"step {step} loss {loss.item() * accumulate:.3f} {kinds} on {trained[0].device}", flush=True)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        print(f"{len(full)} tensors, {sum(t.numel() for t in full.values()) / 1e6:.1f}M", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
