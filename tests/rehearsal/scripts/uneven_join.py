"""Ranks with different numbers of batches under DDP.join; a graph network with scatter sums; ragged batches collated."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate  # noqa: F401


class Graphs(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        nodes = int(torch.randint(10, 40, (1,), generator=g))
        return torch.randn(nodes, 32, generator=g), torch.randint(0, nodes, (2, 4 * nodes), generator=g), i % 5


def collate(rows):
    xs, edges, ys, batch, at = [], [], [], [], 0
    for number, (x, e, y) in enumerate(rows):
        xs.append(x)
        edges.append(e + at)
        ys.append(y)
        batch.append(torch.full((len(x),), number))
        at += len(x)
    return torch.cat(xs), torch.cat(edges, 1), torch.tensor(ys), torch.cat(batch)


class Convolution(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.other = nn.Linear(i, o), nn.Linear(i, o)

    def forward(self, x, edges):
        source, target = edges
        gathered = torch.zeros_like(x).index_add_(0, target, x[source])
        degree = torch.zeros(x.size(0), device=x.device).scatter_add_(0, target, torch.ones_like(target, dtype=x.dtype))
        return torch.relu(self.own(x) + self.other(gathered / degree.clamp(min=1).unsqueeze(1)))


class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.out = Convolution(32, 128), Convolution(128, 128), nn.Linear(128, 5)

    def forward(self, x, edges, batch):
        x = self.c2(self.c1(x, edges), edges)
        pooled = x.new_zeros(int(batch.max()) + 1, 128).index_reduce_(0, batch, x, "mean", include_self=False)
        return self.out(pooled)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = dist.get_rank()
    model = DDP(GNN().cuda(), device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Graphs(48), batch_size=16, collate_fn=collate, shuffle=True, num_workers=1)
    assert Join is not None
    for number, batch in enumerate(loader):
        x, edges, y, owner = (t.cuda(non_blocking=True) for t in batch)
        loss = nn.functional.cross_entropy(model(x, edges, owner), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"batch {number}: {x.size(0)} nodes, loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
