"""Two networks, two optimizers, a gradient penalty by double backward; one backward kept for the second."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def generator():
    up = lambda i, o: [nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]
    return nn.Sequential(
        nn.ConvTranspose2d(100, 256, 4), nn.ReLU(True), *up(256, 128), *up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()
    )  # fmt: skip


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 128, 4, 2, 1), nn.InstanceNorm2d(128, affine=True),
            nn.LeakyReLU(0.2), nn.Conv2d(128, 256, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(256, 1, 4),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x).flatten()


def penalty(critic, real, fake):
    mix = torch.rand(real.size(0), 1, 1, 1, device=real.device)
    x = (mix * real + (1 - mix) * fake).requires_grad_(True)
    scores = critic(x)
    (g,) = torch.autograd.grad(scores, x, torch.ones_like(scores), create_graph=True, retain_graph=True)
    return ((g.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    g = DDP(generator().cuda(), device_ids=[local], broadcast_buffers=False)
    d = DDP(Critic().cuda(), device_ids=[local])
    og = torch.optim.Adam(g.parameters(), 2e-4, betas=(0.0, 0.9))
    od = torch.optim.Adam(d.parameters(), 2e-4, betas=(0.0, 0.9))
    for step in range(2):
        real = torch.rand(32, 3, 32, 32).cuda().mul_(2).sub_(1)
        for _ in range(2):
            noise = torch.randn(32, 100, 1, 1, device="cuda")
            with torch.no_grad():
                made = g(noise)
            od.zero_grad()
            loss_d = d(made).mean() - d(real).mean() + 10 * penalty(d.module, real, made)
            loss_d.backward()
            od.step()
        og.zero_grad()
        for p in d.parameters():
            p.requires_grad_(False)
        loss_g = -d.module(g(torch.randn(32, 100, 1, 1, device="cuda"))).mean()
        loss_g.backward()
        og.step()
        for p in d.parameters():
            p.requires_grad_(True)
        if dist.get_rank() == 0:
            print("iteration %d: critic %.3f generator %.3f" % (step, loss_d.item(), loss_g.item()), flush=True)
    dist.destroy_process_group()


main()
