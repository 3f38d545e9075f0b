"""The built-in job `digits`: handwritten digits, learned in seconds on a laptop.

The data are the 1,797 real images of scikit-learn's `load_digits` (8 × 8, from the UCI repository), enlarged to 32 ×
32. One image in five is kept for evaluation, the same ones every time, with the classes in proportion.
"""

import functools
import math
from collections.abc import Iterable

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from trimaran.job import Job
from trimaran.networks.lenet import LeNet

EPOCHS = 15
GLOBAL_BATCH_SIZE = 64
WARM_UP_UPDATES = 100
_UPDATES = EPOCHS * -(-1437 // GLOBAL_BATCH_SIZE)


def digits() -> Job:
    """A LeNet-like network on handwritten digits.

    Returns:
        A job of 1,437 training and 360 evaluation images, global batch 64, 15 epochs, evaluated by accuracy.
    """
    return Job(
        name="digits",
        model=LeNet,
        loss=functional.cross_entropy,
        optimizer=_make_optimizer,
        dataset=functools.partial(load_images, train=True),
        evaluation_dataset=functools.partial(load_images, train=False),
        metric=accuracy,
        lr_schedule=_make_schedule,
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
    )


def load_images(*, train: bool) -> Dataset[tuple[torch.Tensor, ...]]:
    """The images of one side of the split, in memory.

    Args:
        train: the 1,437 training images; otherwise the 360 kept for evaluation

    Returns:
        Samples of an image [1, 32, 32], values 0 to 1, and its class.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    chosen, kept = train_test_split(numpy.arange(len(data.target)), test_size=0.2, stratify=data.target, random_state=0)
    indices = chosen if train else kept
    small = torch.from_numpy(data.images[indices]).float().unsqueeze(1) / 16
    images = functional.interpolate(small, size=32, mode="bilinear", align_corners=False)
    return TensorDataset(images, torch.from_numpy(data.target[indices]).long())


def accuracy(scores: torch.Tensor, classes: torch.Tensor) -> float:
    """Share of samples whose best class is the right one.

    Args:
        scores: [batch, classes]
        classes: [batch]

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    return (scores.argmax(dim=1) == classes).double().mean().item()


def _make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=4e-3, weight_decay=0.05)


def _make_schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, _rate)


def _rate(update: int) -> float:
    """Linear warm-up, then half a cosine down to a hundredth; it stays there if training goes on."""
    if update < WARM_UP_UPDATES:
        return (update + 1) / WARM_UP_UPDATES
    done = min(1.0, (update - WARM_UP_UPDATES) / (_UPDATES - WARM_UP_UPDATES))
    return 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2
