"""MPT under FSDP2 in bf16, as mosaicml/llm-foundry's benchmarks train it: a script for torchrun.

    torchrun --nproc-per-node 8 benchmarks/rehearsal/mpt.py --width 4096 --layers 32 --heads 32 --sequence 2048
        --microbatch 4 --accumulation 3 --recompute

No biases, ALiBi inside the attention's kernel (here none: it adds nothing to the bytes that are moved), norms in bf16,
GELU, the embedding as the head, AdamW tensor by tensor, gradients clipped by their norm. Random tokens.

Source:
    mosaicml/llm-foundry, scripts/train/benchmarking/README.md and sweep.py; llmfoundry/models/mpt;
    mosaicml/composer, optim/decoupled_weight_decay.py (`DecoupledAdamW` steps tensor by tensor).
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY = 50368


class Block(nn.Module):
    def __init__(self, width: int, heads: int, recompute: bool) -> None:
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.norm_1 = nn.LayerNorm(width, bias=False)
        self.wqkv = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        self.norm_2 = nn.LayerNorm(width, bias=False)
        self.up_proj = nn.Linear(width, 4 * width, bias=False)
        self.down_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if self.recompute:
            return checkpoint(self.compute, states, use_reentrant=False)
        return self.compute(states)

    def compute(self, states: torch.Tensor) -> torch.Tensor:
        batch, length, width = states.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.wqkv(self.norm_1(states)).chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.out_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return states + self.down_proj(functional.gelu(self.up_proj(self.norm_2(states))))


class Mpt(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, recompute: bool) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads, recompute) for _ in range(layers))
        self.norm_f = nn.LayerNorm(width, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        states = self.wte(tokens)
        for block in self.blocks:
            states = block(states)
        scores = functional.linear(self.norm_f(states), self.wte.weight)
        return functional.cross_entropy(scores.view(-1, VOCABULARY), targets.view(-1))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("width", "layers", "heads", "sequence", "microbatch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--keep-gathered", action="store_true", help="SHARD_GRAD_OP")
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    with torch.device("meta"):
        model = Mpt(given.width, given.layers, given.heads, given.recompute)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=not given.keep_gathered)
    fully_shard(model, mp_policy=policy, reshard_after_forward=not given.keep_gathered)
    model.to_empty(device=device)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for _ in range(given.steps):
        for _ in range(given.accumulation):
            tokens = torch.randint(VOCABULARY, (given.microbatch, given.sequence + 1)).to(device)
            loss = model(tokens[:, :-1], tokens[:, 1:].contiguous()) / given.accumulation
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
