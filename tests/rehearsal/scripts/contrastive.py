"""Contrastive learning: features gathered over ranks with gradients, a momentum encoder and a queue of negatives."""

import copy
import os

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, out=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 64, 7, 4, 3),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.project = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, out))

    def forward(self, x):
        return F.normalize(self.project(self.net(x)), dim=1)


class GatherLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x)
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        every = torch.stack(grads)
        dist.all_reduce(every)
        return every[dist.get_rank()]


@torch.no_grad()
def shuffled(x):
    """Batch order over all ranks is drawn by rank 0, as MoCo does against leaks through batch norm."""
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x, async_op=False)
    every = torch.cat(every)
    order = torch.randperm(every.shape[0]).cuda()
    dist.broadcast(order, src=0)
    back = torch.argsort(order)
    mine = order.view(dist.get_world_size(), -1)[dist.get_rank()]
    return every[mine], back


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    encoder = Encoder().cuda()
    momentum = copy.deepcopy(encoder).requires_grad_(False)
    model = DDP(encoder, device_ids=[torch.cuda.current_device()])
    queue = F.normalize(torch.randn(128, 4096, device="cuda"), dim=0)
    at = 0
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    for step in range(2):
        one, two = torch.rand(16, 3, 96, 96).cuda(), torch.rand(16, 3, 96, 96).cuda()
        with torch.no_grad():
            for k, q in zip(momentum.parameters(), encoder.parameters(), strict=True):
                k.data = k.data * 0.99 + q.data * 0.01
            moved, back = shuffled(two)
            keys = momentum(moved)
            keys = torch.cat([t for t in GatherLayer.apply(keys)])[back][: one.shape[0]]
        q = model(one)
        moco = F.cross_entropy(
            torch.cat([(q * keys).sum(1, keepdim=True), q @ queue.clone().detach()], 1) / 0.07,
            torch.zeros(16, dtype=torch.long, device="cuda"),
        )
        every = torch.cat(GatherLayer.apply(q))
        others = torch.cat(torch.distributed.nn.all_gather(q))
        similarity = q @ every.T / 0.1 + 0 * (q @ others.T)
        similarity.fill_diagonal_(float("-inf")) if similarity.shape[0] == similarity.shape[1] else None
        simclr = torch.logsumexp(similarity, 1).mean()
        loss = moco + 0.1 * simclr
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            queue[:, at : at + 16] = keys.T
            at = (at + 16) % 4096
        if dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.3f}, {every.shape[0]} negatives, pointer {at}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
