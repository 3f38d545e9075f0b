"""DeepSpeed ZeRO, stage by argument, bfloat16, with its own optimizer loop."""

import argparse
import os

import deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, d=1024):
        super().__init__()
        self.n = nn.LayerNorm(d)
        self.a, self.b = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.n(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(16000, 1024)
        self.layers = nn.ModuleList(Block() for _ in range(6))
        self.h = nn.Linear(1024, 16000, bias=False)

    def forward(self, x):
        h = self.e(x)
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(self.h(h).flatten(0, 1).float(), x.flatten())


config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": args.stage, "overlap_comm": True, "contiguous_gradients": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "gradient_clipping": 1.0,
    "steps_per_print": 1,
}
deepspeed.init_distributed("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = Net()
engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(2):
    x = torch.randint(0, 16000, (2, 512), device=engine.device)
    loss = engine(x)
    engine.backward(loss)
    engine.step()
    if torch.distributed.get_rank() == 0:
        print(f"step {step} loss {loss.item():.3f} stage {args.stage} scale {engine.get_lr()}", flush=True)
