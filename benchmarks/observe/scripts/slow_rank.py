"""A network under DDP, started with spawn. Planted: one of two ranks takes longer for each batch."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Encoder(nn.Module):
    """Of tokens; with `positions` it keeps their numbers in a buffer, as BERT does, else a causal mask."""

    def __init__(self, *, bert):
        super().__init__()
        self.bert = bert
        self.words, self.places = nn.Embedding(512, 64), nn.Embedding(64, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 512)
        if bert:
            self.register_buffer("positions", torch.arange(64).expand(1, -1), persistent=False)
        else:
            self.register_buffer("mask", torch.full((64, 64), float("-inf")).triu(1))

    def forward(self, tokens):
        positions = self.positions if self.bert else torch.arange(64)
        hidden = self.words(tokens) + self.places(positions)
        return self.head(self.layers(hidden, mask=None if self.bert else self.mask)).flatten(0, 1)


def made(name):
    """A network, its inputs and its targets."""
    if name == "batchnorm":
        layers = []
        for channels in (1, 8, 16):
            layers += [
                nn.Conv2d(channels, max(8, 2 * channels), 3, padding=1),
                nn.BatchNorm2d(max(8, 2 * channels)),
                nn.ReLU(),
            ]
        network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
        return network, torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
    tokens = torch.randint(0, 512, (4, 64))
    return Encoder(bert=name == "bert"), tokens, tokens.flatten()


class Slow(nn.Module):
    """A network on a device that takes longer."""

    def __init__(self, network, seconds):
        super().__init__()
        self.network, self.seconds = network, seconds

    def forward(self, inputs):
        time.sleep(self.seconds)
        return self.network(inputs)


def train(rank, world, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    network, inputs, targets = made(args.network)
    slow = 0.0 if args.even or rank != args.rank else args.ms * 1e-3
    model = DistributedDataParallel(Slow(network, slow if args.place == "forward" else 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ends = []
    for _ in range(args.steps):
        if args.place == "before":
            time.sleep(slow)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
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
    parser.add_argument("--network", choices=["batchnorm", "bert", "language"], default="batchnorm")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--place", choices=["forward", "before"], default="forward")
    parser.add_argument("--ms", type=float, default=30.0)
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--port", type=int, default=29532)
    args = parser.parse_args()
    mp.spawn(train, args=(2, args), nprocs=2)


if __name__ == "__main__":
    main()
