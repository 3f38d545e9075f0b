"""Networks under DDP, started with spawn. Planted: one rank has more samples in each step, or `--slow`, one is slow.

The forward of a slow rank takes four times its time: with backwards of two forwards, the other should have two thirds.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TOTAL = 128
WORDS, LENGTH, WIDE = 512, 24, 64


def normed(channels):
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2))


class Reader(nn.Module):
    """A transformer over words: BERT's encoder, or with a mask over what comes later a language model."""

    def __init__(self, causal):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(LENGTH, WIDE)
        layer = nn.TransformerEncoderLayer(WIDE, 4, 4 * WIDE, dropout=0.1, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDE, WORDS)
        self.register_buffer("ids", torch.arange(LENGTH))
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1) if causal else None)

    def forward(self, words):
        states = self.layers(self.words(words) + self.places(self.ids), mask=self.mask)
        return self.head(states).flatten(0, 1)


def cnn(between):
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), *between(16),
        nn.Conv2d(16, 32, 3, padding=1), *between(32),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip


NETWORKS = {
    "cnn": lambda: cnn(lambda channels: (nn.ReLU(), nn.MaxPool2d(2))),
    "batchnorm": lambda: cnn(normed),
    "bert": lambda: Reader(causal=False),
    "lm": lambda: Reader(causal=True),
}


def slow_down(model):
    """The forward takes four times its time."""
    begun = []
    model.register_forward_pre_hook(lambda *_: begun.append(time.perf_counter()))

    def spin(*_):
        now = time.perf_counter()
        until = now + 3 * (now - begun.pop())
        while time.perf_counter() < until:
            pass

    model.register_forward_hook(spin)


def train(rank, world, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    if args.network in ("cnn", "batchnorm"):
        inputs, labels = torch.randn(1024, 1, 28, 28), torch.randint(0, 10, (1024,))
    else:
        inputs = torch.randint(0, WORDS, (1024, LENGTH))
        labels = inputs.roll(-1, 1) if args.network == "lm" else inputs
    shares = torch.Generator().manual_seed(1)
    model = NETWORKS[args.network]()
    if args.slow and rank == 1:
        slow_down(model)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    ends = []
    for step in range(args.steps):
        if args.slow:
            first = TOTAL * 2 // 3 if args.even else TOTAL // 2
        else:
            first = TOTAL // 2 if args.even else int(torch.randint(80, 112, (), generator=shares))
        start = step * TOTAL % 1024
        mine = slice(start, start + first) if rank == 0 else slice(start + first, start + TOTAL)
        optimizer.zero_grad()
        loss = criterion(model(inputs[mine]), labels[mine].flatten())
        loss.backward()
        optimizer.step()
        ends.append(time.perf_counter())
    warm = len(ends) // 5
    if rank == 0:
        print(f"loss {loss.item():.3f}")
        print(f"{1e3 * (ends[-1] - ends[warm]) / (len(ends) - 1 - warm):.4f} ms/step")
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--network", choices=NETWORKS, default="cnn")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--port", type=int, default=29531)
    args = parser.parse_args()
    mp.spawn(train, args=(2, args), nprocs=2)


if __name__ == "__main__":
    main()
