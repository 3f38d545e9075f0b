"""Mixture of experts: top-2 routing, tokens sorted and sent by all_to_all_single with uneven sizes, balance loss."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

DIM, HIDDEN, EXPERTS_PER_RANK, TOP, VOCABULARY = 1024, 2048, 2, 2, 16000


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received, group):
        ctx.sent, ctx.received, ctx.group = sent, received, group
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.sent), *grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return out, None, None, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(DIM, HIDDEN), nn.Linear(HIDDEN, DIM)

    def forward(self, x):
        return self.b(F.silu(self.a(x)))


class MoE(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.total = EXPERTS_PER_RANK * self.ranks
        self.router = nn.Linear(DIM, self.total, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS_PER_RANK))
        for p in self.experts.parameters():
            p.is_expert = True

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, DIM)
        probs = self.router(x).float().softmax(-1)
        weights, chosen = probs.topk(TOP, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.total)
        their_counts = torch.empty_like(counts)
        dist.all_to_all_single(their_counts, counts, group=self.group)
        sent = counts.view(self.ranks, -1).sum(1).tolist()
        received = their_counts.view(self.ranks, -1).sum(1).tolist()
        moved = AllToAll.apply(x[order // TOP], sent, received, self.group)
        local = torch.arange(EXPERTS_PER_RANK, device=x.device).repeat(self.ranks)
        owner = torch.repeat_interleave(local, their_counts)
        out = torch.zeros_like(moved)
        for number, expert in enumerate(self.experts):
            index = (owner == number).nonzero(as_tuple=True)[0]
            if index.numel():
                out = out.index_add(0, index, expert(moved[index]))
        back = AllToAll.apply(out, received, sent, self.group)
        result = torch.zeros_like(x).index_add(0, order // TOP, back * weights.flatten()[order].unsqueeze(1))
        share = counts.float() / counts.sum()
        balance = self.total * (share * probs.mean(0)).sum()
        return result.view(shape), balance


class Net(nn.Module):
    def __init__(self, group, depth=4):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM)
        self.attn = nn.ModuleList(nn.MultiheadAttention(DIM, 8, batch_first=True) for _ in range(depth))
        self.moe = nn.ModuleList(MoE(group) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * depth))
        self.head = nn.Linear(DIM, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        aux = 0.0
        for i, (attn, moe) in enumerate(zip(self.attn, self.moe, strict=True)):
            h = self.norms[2 * i](x)
            x = x + attn(h, h, h, need_weights=False)[0]
            h, balance = moe(self.norms[2 * i + 1](x))
            x, aux = x + h, aux + balance
        return self.head(x), aux


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world = dist.get_rank(), dist.get_world_size()
    size = min(8, world)
    for first in range(0, world, size):
        members = list(range(first, first + size))
        made = dist.new_group(members)
        if rank in members:
            expert_group = made
    for first in range(size):
        members = list(range(first, world, size))
        made = dist.new_group(members)
        if rank in members:
            replicas = made
    model = Net(expert_group).cuda()
    skipped = [name for name, p in model.named_parameters() if getattr(p, "is_expert", False)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, skipped)
    model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(2):
        tokens = torch.randint(0, VOCABULARY, (4, 512), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits, aux = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()) + 0.01 * aux
        loss.backward()
        for p in model.parameters():
            if getattr(p, "is_expert", False):
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                dist.all_reduce(p.grad, group=replicas)
                p.grad /= world
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f} balance {float(aux):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
