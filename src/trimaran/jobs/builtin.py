"""The built-in jobs `digits`, `digits-resnet`, `digits-branches` and `wide`: handwritten digits, by four networks.

The data are the 1,797 real images of scikit-learn's `load_digits` (8 × 8, from the UCI repository), enlarged. One image
in five is kept for evaluation, the same ones every time, with the classes in proportion.

`digits` is learned in seconds on a laptop. `digits-resnet` has much compute and few parameters, `wide` many parameters
and little compute. `digits-branches` has heavy branches that can run side by side.

The built-in jobs `text-lstm` and `text-gpt`: the next character of English text, by recurrence and by attention.

About a million parameters each, on the same windows of text (`jobs/text.py`). The recurrent one works character
after character; the other one works on all characters of a window at once, and its first and last stage share a matrix.
"""

import functools
import importlib.util
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, TensorDataset

from trimaran.base.job import Job
from trimaran.jobs import text
from trimaran.networks.gpt import CharacterGpt
from trimaran.networks.recurrent import CharacterLstm
from trimaran.networks.small_images import BranchNetwork, LeNet, ResidualNetwork, WideClassifier

# ---------------------------------------------------------------------------------------------------------------------
# The learning rate of the built-in jobs: up in a line, down along half a cosine


FLOOR = 0.01  # of the largest rate; what is left when training goes on after the last planned update


def warm_up_then_cosine(optimizer: Optimizer, *, warm_up: int, updates: int) -> LambdaLR:
    """The schedule, over an optimizer whose rate is the largest one.

    Args:
        optimizer: made with the largest rate
        warm_up: updates until that rate is reached
        updates: updates until the lowest rate is reached

    Returns:
        A schedule to step once an update.
    """

    def share(update: int) -> float:
        return rate(update, warm_up=warm_up, updates=updates)

    return LambdaLR(optimizer, share)


def rate(update: int, *, warm_up: int, updates: int) -> float:
    """Share of the largest rate at an update, counted from 0.

    Example:
        >>> [rate(update, warm_up=2, updates=4) for update in (0, 1, 2, 3, 9)]
        [0.5, 1.0, 1.0, 0.505, 0.01]
    """
    if update < warm_up:
        return (update + 1) / warm_up
    done = min(1.0, (update - warm_up) / (updates - warm_up))
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * done)) / 2


DIGITS_BATCH = 64
_ORDER = Path(__file__).with_name("digits_order.txt")
"""Numbers of the images: those to train on, then those kept; `train_test_split` of scikit-learn with
`test_size=0.2, stratify=classes, random_state=0`."""
_KEPT = 360
"""Images kept for evaluation."""
SMALL = 16
LARGE = 32
_UPDATES_PER_EPOCH = -(-1437 // DIGITS_BATCH)


def digits() -> Job:
    """A LeNet-like network on handwritten digits.

    Returns:
        A job of 1,437 training and 360 evaluation images, global batch 64, 15 epochs, evaluated by accuracy.
    """
    return _digits_job("digits", LeNet, functools.partial(_adamw, rate=4e-3), size=LARGE, epochs=15, warm_up=100)


def digits_resnet() -> Job:
    """A residual network of 14 convolutions on handwritten digits.

    Returns:
        A job on the data of `digits` at 16 × 16, 10 epochs.
    """
    return _digits_job("digits-resnet", ResidualNetwork, functools.partial(_adamw, rate=2e-3), size=SMALL, epochs=10)


def digits_branches() -> Job:
    """Two blocks of four parallel chains of convolutions on handwritten digits.

    Returns:
        A job on the data of `digits` at 16 × 16, 8 epochs.
    """
    return _digits_job("digits-branches", BranchNetwork, functools.partial(_adamw, rate=2e-3), size=SMALL, epochs=8)


def wide() -> Job:
    """Four branches and a head of 4 million parameters on handwritten digits.

    Returns:
        A job on the data of `digits` at 16 × 16, 20 epochs.
    """
    return _digits_job("wide", WideClassifier, functools.partial(_sgd, rate=0.03), size=SMALL, epochs=20)


def _digits_job(
    name: str,
    model: Callable[[], nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    *,
    size: int,
    epochs: int,
    warm_up: int = 50,
) -> Job:
    schedule = functools.partial(warm_up_then_cosine, warm_up=warm_up, updates=epochs * _UPDATES_PER_EPOCH)
    return Job(
        name=name,
        model=model,
        loss=functional.cross_entropy,
        optimizer=optimizer,
        dataset=functools.partial(load_images, train=True, size=size),
        evaluation_dataset=functools.partial(load_images, train=False, size=size),
        metric=accuracy,
        lr_schedule=schedule,
        global_batch_size=DIGITS_BATCH,
        epochs=epochs,
    )


def load_images(*, train: bool, size: int = LARGE) -> Dataset[tuple[torch.Tensor, ...]]:
    """The images of one side of the split, in memory.

    Args:
        train: the 1,437 training images; otherwise the 360 kept for evaluation
        size: height and width to enlarge them to [pixels]

    Returns:
        Samples of an image [1, size, size], values 0 to 1, and its class.
    """
    pixels, classes = _digits()
    order = numpy.array(_ORDER.read_text().split(), dtype=int)
    indices = order[:-_KEPT] if train else order[-_KEPT:]
    small = torch.from_numpy(pixels[indices]).float().view(-1, 1, 8, 8) / 16
    images = functional.interpolate(small, size=size, mode="bilinear", align_corners=False)
    return TensorDataset(images, torch.from_numpy(classes[indices]).long())


def _digits() -> tuple[numpy.ndarray, numpy.ndarray]:
    """Pixels [1797, 64], 0 to 16, and classes [1797], from scikit-learn's file.

    Each rank and each command would import scikit-learn, which takes seconds, to read one file of it.
    """
    found = importlib.util.find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        if (file := Path(folder, "datasets", "data", "digits.csv.gz")).is_file():
            table = numpy.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.data, data.target


def accuracy(scores: torch.Tensor, classes: torch.Tensor) -> float:
    """Share of samples, or of characters, whose best class is the right one.

    Args:
        scores: [batch, classes] or [batch, length, classes]
        classes: [batch] or [batch, length]

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    return (scores.argmax(dim=-1) == classes).double().mean().item()


def _adamw(parameters: Iterable[nn.Parameter], *, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.05)


def _sgd(parameters: Iterable[nn.Parameter], *, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9)


EPOCHS = 3
TEXT_BATCH = 32
UPDATES = EPOCHS * (text.TRAINING_WINDOWS // TEXT_BATCH)


def text_lstm() -> Job:
    """Two LSTM layers of 256.

    Returns:
        A job of 4,800 training and 320 evaluation windows of 48 characters, global batch 32, 3 epochs, evaluated by the
        accuracy of the next character.
    """
    return _text_job("text-lstm", lambda: CharacterLstm(len(text.vocabulary())), rate=4e-3)


def text_gpt() -> Job:
    """Five transformer blocks of width 128, with the embedding as their head.

    Returns:
        A job on the same data as `text_lstm`.
    """
    return _text_job("text-gpt", lambda: CharacterGpt(len(text.vocabulary()), length=text.LENGTH), rate=2e-3)


def _text_job(name: str, model: Callable[[], nn.Module], *, rate: float) -> Job:
    def make_optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=rate, weight_decay=0.05)

    return Job(
        name=name,
        model=model,
        loss=text.loss,
        optimizer=make_optimizer,
        dataset=functools.partial(text.load_windows, train=True),
        evaluation_dataset=functools.partial(text.load_windows, train=False),
        metric=accuracy,
        lr_schedule=functools.partial(warm_up_then_cosine, warm_up=50, updates=UPDATES),
        global_batch_size=TEXT_BATCH,
        epochs=EPOCHS,
    )
