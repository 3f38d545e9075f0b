"""Shapes that depend on data: masks, nonzero, unique, multinomial, topk, index_put, sparse gradients, ragged lists."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Tagger(nn.Module):
    def __init__(self, words=5000, d=256):
        super().__init__()
        self.words = nn.Embedding(words, d)
        self.body = nn.Linear(d, d)
        self.tag = nn.Linear(d, 20)

    def forward(self, tokens, mask):
        h = self.body(self.words(tokens)).relu()
        h = h.masked_fill(~mask.unsqueeze(-1), 0.0)
        return self.tag(h[mask]), h


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dev = torch.device("cuda", torch.cuda.current_device())
    model = DDP(Tagger().to(dev), device_ids=[dev.index])
    optimizer = torch.optim.AdamW(model.parameters())
    bag = nn.EmbeddingBag(1000, 64, mode="sum", sparse=True).to(dev)
    sparse_optimizer = torch.optim.SparseAdam(list(bag.parameters()), lr=1e-2)
    for step in range(3):
        tokens = torch.randint(1, 5000, (16, 64))
        lengths = torch.randint(8, 65, (16,))
        mask = torch.arange(64)[None, :] < lengths[:, None]
        tokens[~mask] = 0
        tokens, mask = tokens.to(dev), mask.to(dev)
        labels = torch.randint(0, 20, (16, 64), device=dev)
        logits, h = model(tokens, mask)
        loss = F.cross_entropy(logits, labels[mask])
        hard = F.cross_entropy(logits, labels[mask], reduction="none")
        k = max(1, int(0.25 * hard.numel()))
        loss = loss + hard.topk(k).values.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        with torch.no_grad():
            probabilities = logits.softmax(-1)
            drawn = torch.multinomial(probabilities, 2, replacement=False)
            best, where = probabilities.max(-1)
            sure = (best > 0.9).nonzero(as_tuple=False).squeeze(1)
            right = (where == labels[mask]).sum()
            table = torch.zeros(20, 20, device=dev, dtype=torch.long)
            table.index_put_((labels[mask], where), torch.ones_like(where), accumulate=True)
            kinds, counts = torch.unique(tokens, return_counts=True)
            confusion = torch.bincount(labels[mask] * 20 + where, minlength=400).view(20, 20)
            order = torch.argsort(best, descending=True)
            chosen = torch.masked_select(best, best > best.median())
            edges = torch.linspace(0, 1, 11, device=dev)
            bins = torch.bucketize(best, edges)
            histogram = torch.histc(best, 10, 0, 1)
            summed = torch.zeros(5000, 256, device=dev).scatter_add_(
                0, tokens.flatten()[:, None].expand(-1, 256), h.flatten(0, 1).float()
            )
            cut = torch.quantile(best, 0.9)
            first = torch.where(mask)[0]
            ragged = torch.split(logits, lengths.tolist())
            stacked = torch.stack([r.mean(0) for r in ragged])
            longest = lengths.max().item()
            tokens = tokens[:, :longest]

        offsets = torch.arange(0, 64, 8, device=dev)
        bag_loss = bag(torch.randint(0, 1000, (64,), device=dev), offsets).square().mean()
        sparse_optimizer.zero_grad()
        bag_loss.backward()
        sparse_optimizer.step()
        if dist.get_rank() == 0:
            print(
                f"step {step} loss {loss.item():.3f} right {right.item()} of {int(mask.sum())} sure {sure.numel()} "
                f"kinds {kinds.numel()} drawn {tuple(drawn.shape)} table {table.sum().item()} {confusion.shape[0]} "
                f"chosen {chosen.numel()} order {order.numel()} {bins.numel()} {histogram.numel()} "
                f"{tuple(summed.shape)} cut {cut.item():.2f} first {first.numel()} {tuple(stacked.shape)} "
                f"most {counts.max().item() if counts.numel() else 0}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
