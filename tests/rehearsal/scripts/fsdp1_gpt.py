"""The first FSDP (FullyShardedDataParallel): auto-wrap policy, mixed precision, checkpointing, a full state dict."""

import functools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

WIDTH, DEPTH, HEADS, VOCABULARY, LENGTH = 1024, 12, 16, 32000, 1024


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dropout=0.0)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        h = self.ln_1(x)
        h, _ = self.attn(h, h, h, attn_mask=mask, need_weights=False)
        x = x + h
        return x + self.fc2(F.gelu(self.fc1(self.ln_2(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("mask", torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), diagonal=1))

    def forward(self, x):
        h = self.embed(x) + self.place[:, : x.shape[1]]
        for layer in self.layers:
            h = layer(h, self.mask[: x.shape[1], : x.shape[1]].to(h.dtype))
        return F.linear(self.norm(h), self.embed.weight)


def main():
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.cuda.manual_seed(rank)
    bf16 = torch.cuda.is_bf16_supported()
    dtype = torch.bfloat16 if bf16 else torch.float16
    model = Decoder()
    if rank == 0:
        print(f"--> model has {sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6} million params")
    model = FSDP(
        model,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer}),
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32, buffer_dtype=dtype),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        device_id=torch.cuda.current_device(),
        limit_all_gathers=True,
        use_orig_params=True,
        forward_prefetch=True,
    )
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
        check_fn=lambda module: isinstance(module, Layer),
    )
    if rank == 0:
        print(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    scaler = ShardedGradScaler(enabled=not bf16)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 100))
    totals = torch.zeros(2, device=local)
    for step in range(3):
        tokens = torch.randint(0, VOCABULARY, (4, LENGTH + 1), device="cuda")
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = model.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        warmup.step()
        totals[0] += loss.item()
        totals[1] += 1
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}, gradient norm {norm.item():.3f}", flush=True)
    dist.all_reduce(totals, op=dist.ReduceOp.SUM)
    with FSDP.state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    ):
        state = model.state_dict()
    if rank == 0:
        print(f"mean loss {totals[0] / totals[1]:.3f}; {len(state)} tensors in the state dict")
        print(f"reserved {torch.cuda.memory_reserved() / 2**30:.2f} GiB", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
