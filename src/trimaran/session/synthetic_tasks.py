"""What a published network is trained with, on synthetic data: the model, data, loss and optimizer of its job.

Optimizers are those that the networks are trained with. Learning rates are plausible and of no account: nothing can be
learned.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.utils.data import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticTask:
    """What a job needs beside its name.

    Attributes:
        model: makes the model
        data: makes the data
        batch: global batch size
        optimizer: makes the optimizer
        loss: of output and target
    """

    model: Callable[[], nn.Module]
    data: Callable[[], Dataset[Any]]
    batch: int
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    loss: Callable[[Any, Any], Any]


def momentum(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """SGD with momentum and weight decay, as image classifiers are trained."""
    return SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Plain SGD, as small recurrent language models are trained."""
    return SGD(parameters, lr=1.0)


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adam, as translators are trained."""
    return Adam(parameters, lr=1e-3)


def adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adam with decoupled weight decay, as transformers are trained."""
    return AdamW(parameters, lr=3e-4, weight_decay=0.1)


def adagrad(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adagrad, as BigLSTM was trained."""
    return Adagrad(parameters, lr=0.2)
