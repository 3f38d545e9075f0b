"""Networks whose ranks give each other activations: `activations.py KIND alone|reduced host|device`."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather, all_reduce, all_to_all_single, reduce_scatter

kind, is_reduced, on_device = sys.argv[1], sys.argv[2] == "reduced", sys.argv[3] == "device"
rank = int(os.environ["RANK"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
world = dist.get_world_size()
torch.manual_seed(0)
WIDTH = 64


class Normalized(nn.Module):
    """Normalization by the statistics of all ranks, by hand."""

    def forward(self, x):
        sums = torch.stack([x.sum(0), x.square().sum(0)])
        sums = all_reduce(sums) / (len(x) * world)
        return (x - sums[0]) / (sums[1] - sums[0].square() + 1e-5).sqrt()


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        everyone = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(everyone, x)
        return tuple(everyone)

    @staticmethod
    def backward(ctx, *gradients):
        whole = torch.stack(gradients)
        dist.all_reduce(whole)
        return whole[rank]


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, world)
        self.expert = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        weight = self.router(x).softmax(-1).amax(-1, keepdim=True)
        if kind == "experts by gathering":
            y = self.expert(torch.cat(all_gather(x)))
            return x + weight * reduce_scatter(torch.empty_like(x), list(y.chunk(world)))
        got = all_to_all_single(torch.empty_like(x), x)
        return x + weight * all_to_all_single(torch.empty_like(x), self.expert(got))


class Heads(nn.Module):
    """Ranks share sequences: heads for places and back."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.into(x)
        x = all_to_all_single(torch.empty_like(x), x).softmax(-1)
        return self.out(all_to_all_single(torch.empty_like(x), x))


class Tables(nn.Module):
    """Each rank looks up in its table for all, and gives each its part."""

    def __init__(self):
        super().__init__()
        self.expert = nn.Embedding(100, WIDTH)

    def forward(self, x):
        found = self.expert(torch.arange(len(x), device=device))
        return x + all_to_all_single(torch.empty_like(found), found)


class Shards(nn.Module):
    """Columns and rows of two layers, by hand."""

    def __init__(self):
        super().__init__()
        self.expert = nn.Sequential(nn.Linear(WIDTH, WIDTH // 4), nn.ReLU(), nn.Linear(WIDTH // 4, WIDTH))

    def forward(self, x):
        return all_reduce(self.expert(x))


class Classes(nn.Module):
    """Each rank has some of the classes, and takes the features of all."""

    def __init__(self):
        super().__init__()
        self.expert = nn.Linear(WIDTH, 10)

    def forward(self, x):
        scores = self.expert(torch.cat(Gathered.apply(x)))
        return scores - all_reduce(scores.exp().sum(1, keepdim=True)).log()


middle = {
    "statistics": lambda: nn.BatchNorm1d(WIDTH), "statistics by hand": Normalized, "experts": Experts,
    "experts by gathering": Experts, "heads": Heads, "tables": Tables, "shards": Shards, "shards of one batch": Shards,
}  # fmt: skip
last = Classes() if kind == "classes" else nn.Linear(WIDTH, WIDTH)
network = nn.Sequential(nn.Linear(WIDTH, WIDTH), middle.get(kind, nn.Identity)(), nn.ReLU(), last).to(device)
network = nn.SyncBatchNorm.convert_sync_batchnorm(network) if kind == "statistics" else network
shared = [one for name, one in network.named_parameters() if "expert." not in name]


def loss_of(features):
    if not kind.startswith("contrastive"):
        return features.square().mean()
    if kind == "contrastive":
        with torch.no_grad():
            everyone = [torch.empty_like(features) for _ in range(world)]
            dist.all_gather(everyone, features)
        everyone[rank] = features
    else:
        everyone = all_gather(features) if kind == "contrastive by function" else Gathered.apply(features)
    return nn.functional.cross_entropy(features @ torch.cat(everyone).T, torch.arange(len(features), device=device))


model = (
    nn.parallel.DistributedDataParallel(network)
    if is_reduced and len(shared) == len([*network.parameters()])
    else network
)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
torch.manual_seed(0 if kind == "shards" else rank)
for _ in range(3):
    x = torch.randn(16, WIDTH, device=device) if on_device else torch.randn(16, WIDTH).to(device)
    if kind == "shards of one batch":
        dist.broadcast(x, src=0)
    loss_of(model(x)).backward()
    if is_reduced and model is network:
        for one in shared:
            dist.all_reduce(one.grad, op=dist.ReduceOp.AVG)
    optimizer.step()  # step
    optimizer.zero_grad()
