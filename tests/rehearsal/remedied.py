"""A language model that does by itself what a remedy advises: rehearsed with and without, remedies can be judged.

torchrun --nproc-per-node 2 remedied.py WHAT LAYERS BATCH

WHAT: plain, recompute, offload, chunked-loss, smaller-microbatch, zero-1 or fully-shard.
"""

import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "trainings"))

import torch
import torch.nn.functional as functional
from common import DEVICE, dist, start
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WHAT, LAYERS, BATCH = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
WIDTH, HEADS, WORDS, LENGTH = 1024, 16, 32000, 1024
RANK, WORLD = start()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attend(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            with torch.autograd.graph.save_on_cpu(pin_memory=True) if WHAT == "offload" else contextlib.nullcontext():
                x = checkpoint(layer, x, use_reentrant=False) if WHAT == "recompute" else layer(x)
        rows, wanted = x.flatten(0, 1), targets.flatten()
        if WHAT != "chunked-loss":
            return self.loss(rows, wanted)
        pairs = zip(rows.chunk(8), wanted.chunk(8), strict=True)
        return sum(checkpoint(self.loss, *pair, use_reentrant=False) for pair in pairs) / 8

    def loss(self, rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(rows).float(), wanted)


dtype = torch.get_default_dtype()
torch.set_default_dtype(torch.bfloat16)
model: nn.Module = Net().to(DEVICE)
torch.set_default_dtype(dtype)
if WHAT == "fully-shard":
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
elif WORLD > 1:
    model = DistributedDataParallel(model)
parameters = list(model.parameters())
if WHAT == "zero-1":
    optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
pieces = 2 if WHAT == "smaller-microbatch" else 1
for _ in range(3):
    for piece in range(pieces):
        tokens = torch.randint(0, WORDS, (BATCH // pieces, LENGTH), device=DEVICE)
        targets = torch.randint(0, WORDS, (BATCH // pieces, LENGTH), device=DEVICE)
        quiet = WORLD > 1 and WHAT != "fully-shard" and piece < pieces - 1
        with model.no_sync() if quiet else contextlib.nullcontext():
            model(tokens, targets).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
