"""What the small trainings have in common: a device, a network, batches, and a mark on memory that is the host's."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn

STEPS = 3
HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if HAS_GPU else torch.device("cpu")

on_host_now = 0
"""Depth of `on_host`; an observer of a real run on a CPU leaves out what is made meanwhile."""


@contextmanager
def on_host() -> Iterator[None]:
    """Tensors that are made here are the host's, where the device is the host, too."""
    global on_host_now
    on_host_now += 1
    try:
        yield
    finally:
        on_host_now -= 1


def start() -> tuple[int, int]:
    """Join the group of all ranks; rank and world."""
    if HAS_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if HAS_GPU else "gloo")
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()


class Attention(nn.Module):
    """Attention with all of its scores."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, _ = x.shape
        query, key, value = (
            part(x).view(samples, length, -1, x.shape[-1] // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(samples, length, -1))


class Layer(nn.Module):
    """Attention and two products."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(functional.relu(self.up(self.norm2(x))))


class Net(nn.Module):
    """A small decoder without positions."""

    def __init__(self, width: int = 128, hidden: int = 512, depth: int = 4, heads: int = 4, words: int = 512) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, hidden, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def batch(samples: int = 8, length: int = 64, words: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and those that follow, on the device."""
    tokens = torch.randint(words, (samples, length + 1)).to(DEVICE)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def adam(parameters: object) -> torch.optim.Optimizer:
    """The same on every device: torch takes other forms on a CPU by itself."""
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=True)  # type: ignore[arg-type]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, clip: bool = False, samples: int = 8, words: int = 512
) -> None:
    """Steps with a batch of their own."""
    for step in range(STEPS):
        tokens, targets = batch(samples, words=words)
        loss = loss_of(model(tokens), targets)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write(f"step {step}: loss {loss.item():.3f}\n")
