"""Two jobs that train to a target in seconds: one whose gradients are many, one whose work lies in two towers."""

import functools
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional

from trimaran.base.job import Job
from trimaran.jobs.builtin import accuracy, load_images
from trimaran.networks.small_images import WideClassifier

SIZE = 16
"""Height and width of the images [pixels]."""


def large_head() -> Job:
    """Four branches and a dense layer of 1.05 million parameters: each is used once a sample."""
    return _job("large-head", functools.partial(WideClassifier, size=SIZE, dense=1024), _momentum)


def two_towers() -> Job:
    """Two chains of convolutions over the same image, joined by one dense layer: 30,000 parameters, much compute."""
    return _job("two-towers", TwoTowers, _adamw)


class TwoTowers(nn.Module):
    """Two chains of three convolutions, the windows of one larger, and a dense layer over both.

    Args:
        width: feature maps of each convolution
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.narrow = _tower(width, 3)
        self.broad = _tower(width, 5)
        self.head = nn.Linear(2 * width * 4 * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores [batch, 10] of images [batch, 1, 16, 16]."""
        scores: torch.Tensor = self.head(torch.cat([self.narrow(images), self.broad(images)], dim=1))
        return scores


def _tower(width: int, window: int) -> nn.Sequential:
    def convolution(inputs: int) -> nn.Conv2d:
        return nn.Conv2d(inputs, width, window, padding=window // 2)

    return nn.Sequential(
        convolution(1), nn.ReLU(), convolution(width), nn.ReLU(), nn.MaxPool2d(2), convolution(width), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip


def _momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.03, momentum=0.9)


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def _job(
    name: str,
    model: Callable[[], nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
) -> Job:
    return Job(
        name=name,
        model=model,
        loss=functional.cross_entropy,
        optimizer=optimizer,
        dataset=functools.partial(load_images, train=True, size=SIZE),
        evaluation_dataset=functools.partial(load_images, train=False, size=SIZE),
        metric=accuracy,
        global_batch_size=64,
        epochs=20,
    )
