"""Trainings that run out of memory on one rank and at one line, marked by the case's name; each but one rank is small.

    torchrun --nproc-per-node 2 shortages.py CASE

S is a tensor of 1 GiB; the device has room for 1.4 of it.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "trainings"))

import torch
import torch.nn.functional as functional
from common import DEVICE, dist, start
from torch import nn
from torch.utils.checkpoint import checkpoint

CASE = sys.argv[1]
RANK, WORLD = start()
ROWS = 2**18  # of 1024 numbers in 32 bits: S
FEW = 2**8


def rows(victim: int) -> int:
    """Rows of a batch or a table: S on the victim, little elsewhere."""
    return ROWS if victim == RANK else FEW


class Small(nn.Module):
    """Something to train, so that there are steps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1024, device=DEVICE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight  # forward_long_batch


def setup_experts() -> None:
    """A rank has a larger part of the model."""
    held = torch.empty(rows(1), 1024).to(DEVICE)
    tables = nn.Embedding(rows(1), 1024).to(DEVICE)  # setup_experts
    step(lambda model: model(tables.weight[:4] + held[:4]))


def forward_long_batch() -> None:
    """A rank has longer samples."""

    def loss(model: nn.Module) -> torch.Tensor:
        x = torch.randn(rows(1), 1024, device=DEVICE)
        return model(x)

    step(loss)


def forward_float_logits() -> None:
    """The rank with the loss converts its logits."""

    def loss(model: nn.Module) -> torch.Tensor:
        logits = model(torch.randn(FEW, 1024, device=DEVICE)).half().expand(rows(0) // FEW, -1, -1).contiguous()
        logits = logits.flatten(0, 1)
        wide = logits.float()  # forward_float_logits
        return functional.log_softmax(wide, -1)

    step(loss)


def forward_gathered() -> None:
    """A rank gathers what the others only send."""

    def loss(model: nn.Module) -> torch.Tensor:
        x = torch.randn(FEW, 1024, device=DEVICE)
        if RANK == 1:
            parts = [torch.empty(ROWS, 1024, device=DEVICE) for _ in range(WORLD)]  # forward_gathered
            return model(parts[0][:4] + x[:4])
        return model(x)

    step(loss)


def later_kept_results() -> None:
    """Results of each step are kept: the second one is too much."""
    kept = []

    def loss(model: nn.Module) -> torch.Tensor:
        x = torch.randn(rows(1), 1024, device=DEVICE)  # later_kept_results
        kept.append(x)
        return model(x[:4])

    step(loss, 3)


def update_state() -> None:
    """The optimizer's state comes with the first update."""
    weight = nn.Parameter(torch.ones(rows(1) // 2, 1024, device=DEVICE))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam([weight], foreach=False)
    model = Small()
    model(torch.ones(4, 1024, device=DEVICE)).sum().backward()
    optimizer.step()  # update_state


def backward_maximum() -> None:
    """The backward of a maximum is as large as what it was taken of."""

    def loss(model: nn.Module) -> torch.Tensor:
        x = torch.empty(rows(1), 1024, device=DEVICE).requires_grad_()
        return model(x.max(0).values)  # backward_maximum

    step(loss)


def backward_picked() -> None:
    """The backward of picking some rows makes all of them."""

    def loss(model: nn.Module) -> torch.Tensor:
        table = torch.empty(rows(0), 1024, device=DEVICE).requires_grad_()
        some = table[torch.arange(4, device=DEVICE)]  # backward_picked
        return model(some)

    step(loss)


def backward_weight() -> None:
    """The gradient of a weight is as large as the weight."""

    def loss(model: nn.Module) -> torch.Tensor:
        weight = nn.Parameter(torch.empty(rows(1), 1024, device=DEVICE))
        x = model(torch.randn(2, 1024, device=DEVICE))
        x = torch.relu(x)
        return functional.linear(x, weight)  # backward_weight

    step(loss)


def backward_words() -> None:
    """The gradient of a table of words is dense."""

    def loss(model: nn.Module) -> torch.Tensor:
        words = nn.Parameter(torch.empty(rows(1), 1024, device=DEVICE))
        tokens = torch.zeros(8, dtype=torch.long, device=DEVICE)
        return model(functional.embedding(tokens, words))  # backward_words

    step(loss)


def backward_recomputed() -> None:
    """What is recomputed in the backward meets the gradient, which the backward has by then."""

    def wide(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(rows(0) // (2 * FEW), 1).exp().mean(0, keepdim=True)

    def second(x: torch.Tensor) -> torch.Tensor:
        y = x.repeat(rows(0) // (2 * FEW), 1)
        y = y.exp()  # backward_recomputed
        return y.mul(y)

    def loss(model: nn.Module) -> torch.Tensor:
        x = model(torch.randn(FEW, 1024, device=DEVICE))
        return checkpoint(wide, x, use_reentrant=False).sum() + checkpoint(second, x, use_reentrant=False).mean()

    step(loss)


def step(loss: object, steps: int = 2) -> None:
    """Steps of a small model."""
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss(model).sum().backward()  # type: ignore[operator]
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()


globals()[CASE]()
dist.destroy_process_group()
