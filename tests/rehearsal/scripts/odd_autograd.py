"""Autograd's corners: Functions of one's own, hooks of every kind, both checkpoints, torch.func, nested autocast, tied weights."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Scale(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, by):
        ctx.save_for_backward(x, by)
        return x * by

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g):
        x, by = ctx.saved_tensors
        return g * by, (g * x).sum_to_size(by.shape)


class StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable()

    @staticmethod
    def backward(ctx, g):
        return g


class Net(nn.Module):
    def __init__(self, words=4000, d=512):
        super().__init__()
        self.embed = nn.Embedding(words, d)
        self.scale = nn.Parameter(torch.ones(d))
        self.a = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        self.e = nn.Sequential(nn.Linear(d, d), nn.Dropout(0.1), nn.Linear(d, d))
        self.b = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, d), nn.Tanh())
        self.c = nn.utils.parametrizations.weight_norm(nn.Linear(d, d))
        self.d = nn.utils.parametrizations.spectral_norm(nn.Linear(d, d))
        self.head = nn.Linear(d, words, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(d), persistent=False)

    def forward(self, tokens):
        self.seen += tokens.numel()
        x = Scale.apply(self.embed(tokens), self.scale)
        x = x + checkpoint(self.a, x, use_reentrant=True)
        x = x + checkpoint(self.e, x, use_reentrant=False)
        x = checkpoint_sequential(self.b, 2, x, use_reentrant=False)
        with torch.autocast("cuda", enabled=False):
            x = self.c(x.float())
            with torch.autocast("cuda", dtype=torch.float16):
                x = self.d(x)
        self.mean.mul_(0.9).add_(x.detach().float().mean((0, 1)), alpha=0.1)
        x = x + StraightThrough.apply(x.float())
        return self.head(x)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    net = Net().cuda()
    calls = {"forward": 0, "backward": 0, "tensor": 0, "accumulated": 0}

    def count(kind):
        def hook(*_):
            calls[kind] += 1

        return hook

    net.a.register_forward_hook(count("forward"))
    net.a.register_full_backward_hook(count("backward"))
    net.c.register_forward_pre_hook(count("forward"))
    net.scale.register_hook(lambda g: g.clamp(-1, 1))
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(count("accumulated"))
    model = DDP(net, device_ids=[torch.cuda.current_device()], broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(2):
        tokens = torch.randint(0, 4000, (4, 128), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens)
            logits.register_hook(count("tensor"))
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f} seen {net.seen.item()} hooks {calls}", flush=True)

    small = nn.Linear(16, 4).cuda()
    weights = {k: v.detach() for k, v in small.named_parameters()}
    x, y = torch.randn(32, 16, device="cuda"), torch.randint(4, (32,), device="cuda")

    def sample_loss(w, a, b):
        return F.cross_entropy(functional_call(small, w, (a.unsqueeze(0),)), b.unsqueeze(0))

    per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0))(weights, x, y)
    jacobian = jacrev(lambda z: small(z).tanh())(x[0])
    ensemble = [nn.Linear(16, 4).cuda() for _ in range(3)]
    stacked, _ = stack_module_state(ensemble)
    base = nn.Linear(16, 4, device="meta")
    out = vmap(lambda w, z: functional_call(base, w, (z,)), in_dims=(0, None))(stacked, x)
    (penalty,) = torch.autograd.grad(small(x.requires_grad_()).sum(), x, create_graph=True)
    penalty.square().sum().backward()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        small(x).square().sum().backward()
    with torch.inference_mode():
        small(x)
    if dist.get_rank() == 0:
        print("per sample", tuple(per_sample["weight"].shape), "jacobian", tuple(jacobian.shape),
              "ensemble", tuple(out.shape), flush=True)  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
