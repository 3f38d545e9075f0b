"""Denoising diffusion with a small U-Net: GroupNorm, attention at the bottom, EMA by torch.optim.swa_utils, sampling."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Res(nn.Module):
    def __init__(self, i, o, t=256):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, i), nn.Conv2d(i, o, 3, padding=1)
        self.t = nn.Linear(t, 2 * o)
        self.n2, self.c2 = nn.GroupNorm(32, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
        nn.init.zeros_(self.c2.weight)

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.t(F.silu(t))[:, :, None, None].chunk(2, 1)
        return self.skip(x) + self.c2(F.silu(self.n2(h) * (1 + scale) + shift))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n, self.qkv, self.o = nn.GroupNorm(32, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.n(x)).reshape(b, 3, 4, c // 4, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.o(y.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, w=64):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(w, 256), nn.SiLU(), nn.Linear(256, 256))
        self.first = nn.Conv2d(3, w, 3, padding=1)
        self.down = nn.ModuleList([Res(w, w), Res(w, 2 * w), Res(2 * w, 4 * w)])
        self.mid, self.attention = Res(4 * w, 4 * w), Attention(4 * w)
        self.up = nn.ModuleList([Res(8 * w, 2 * w), Res(4 * w, w), Res(2 * w, w)])
        self.last = nn.Sequential(nn.GroupNorm(32, w), nn.SiLU(), nn.Conv2d(w, 3, 3, padding=1))
        self.w = w

    def forward(self, x, t):
        freqs = torch.exp(-torch.arange(self.w // 2, device=t.device) * 0.3)
        angles = t.float()[:, None] * freqs[None]
        t = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        h, kept = self.first(x), []
        for block in self.down:
            h = block(h, t)
            kept.append(h)
            h = F.avg_pool2d(h, 2)
        h = self.attention(self.mid(h, t))
        for block in self.up:
            h = F.interpolate(h, scale_factor=2, mode="nearest")
            h = block(torch.cat([h, kept.pop()], 1), t)
        return self.last(h)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.backends.cudnn.benchmark = True
    net = UNet().cuda().to(memory_format=torch.channels_last)
    model = DDP(net, device_ids=[torch.cuda.current_device()], find_unused_parameters=False)
    ema = torch.optim.swa_utils.AveragedModel(net, device="cuda", use_buffers=True,
                                              multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.995))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    betas = torch.linspace(1e-4, 0.02, 1000, device="cuda")
    kept = torch.cumprod(1 - betas, 0)
    for step in range(2):
        x = torch.randn(8, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
        t = torch.randint(0, 1000, (8,), device="cuda")
        noise = torch.randn_like(x)
        a = kept[t][:, None, None, None]
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t).float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(net)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        x = torch.randn(2, 3, 32, 32, device="cuda")
        for i in reversed(range(0, 1000, 250)):
            out = ema(x, torch.full((2,), i, device="cuda"))
            x = (x - betas[i] / (1 - kept[i]).sqrt() * out) / (1 - betas[i]).sqrt()
            if i > 0:
                x += betas[i].sqrt() * torch.randn_like(x)
    images = ((x.clamp(-1, 1) + 1) * 127.5).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    if dist.get_rank() == 0:
        print("samples", images.shape, images.dtype, flush=True)
    dist.destroy_process_group()


main()
