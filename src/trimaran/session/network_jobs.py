"""The published networks as jobs on synthetic data: what a step of them needs and costs, before there are data.

Batch sizes are those that papers on memory and training time use, optimizers those that the networks are trained with.
Learning rates are plausible and of no account: nothing can be learned.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.utils.data import Dataset

from trimaran.job import Job
from trimaran.networks.alexnet import AlexNet
from trimaran.networks.densenet import DENSENET_BLOCKS, DenseNet
from trimaran.networks.gnmt import Gnmt
from trimaran.networks.googlenet import GoogLeNet
from trimaran.networks.gpt2 import LENGTH, VOCABULARY, gpt2
from trimaran.networks.inception_v3 import InceptionV3
from trimaran.networks.lstm_language import LstmLanguageModel
from trimaran.networks.overfeat import OverFeat
from trimaran.networks.resnet import RESNET_BLOCKS, ResNet
from trimaran.networks.unet import UNet
from trimaran.networks.vgg import VGG_GROUPS, Vgg
from trimaran.networks.vit import VIT_B_16, VIT_L_16, VisionTransformer
from trimaran.session import text
from trimaran.session.synthetic import Field, SyntheticPairs, SyntheticText, image

_CLASSES = 1000
_PIXELS = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
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
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def network_job(name: str) -> Job:
    """A published network on synthetic data.

    Args:
        name: one of those that `trimaran jobs` lists

    Returns:
        A job of 8,192 samples that are drawn when they are asked for; it makes nothing until it is used.
    """
    network = _NETWORKS[name]
    return Job(
        name=name,
        model=network.model,
        loss=network.loss,
        optimizer=network.optimizer,
        dataset=network.data,
        global_batch_size=network.batch,
        drop_last=True,
    )


def _momentum(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def _sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=1.0)


def _adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(parameters, lr=3e-4, weight_decay=0.1)


def _adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return Adam(parameters, lr=1e-3)


def _adagrad(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return Adagrad(parameters, lr=0.2)


def _classifier(
    model: Callable[[], nn.Module],
    batch: int,
    *,
    size: int = _PIXELS,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = _momentum,
) -> _Network:
    data = functools.partial(SyntheticPairs, image(size), target=Field(below=_CLASSES))
    return _Network(model=model, data=data, batch=batch, optimizer=optimizer, loss=functional.cross_entropy)


def _language(
    model: Callable[[], nn.Module],
    batch: int,
    *,
    vocabulary: int,
    length: int,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
) -> _Network:
    data = functools.partial(SyntheticText, vocabulary=vocabulary, length=length)
    return _Network(model=model, data=data, batch=batch, optimizer=optimizer, loss=text.loss)


def _gpt2(size: str, batch: int) -> _Network:
    return _language(functools.partial(gpt2, size), batch, vocabulary=VOCABULARY, length=LENGTH, optimizer=_adamw)


def _translator(vocabulary: int = 32_000, length: int = 50) -> _Network:
    words = Field(shape=(length,), below=vocabulary)
    data = functools.partial(SyntheticPairs, words, words, target=words)
    return _Network(model=Gnmt, data=data, batch=128, optimizer=_adam, loss=text.loss)


def _segmenter(size: int = 512) -> _Network:
    data = functools.partial(SyntheticPairs, image(size), target=Field(shape=(size, size), below=2))
    return _Network(model=UNet, data=data, batch=8, optimizer=_momentum, loss=functional.cross_entropy)


_VERY_DEEP = 100  # vDNN trains the VGG networks of more layers than this with batches of 32

_NETWORKS: dict[str, _Network] = {
    "alexnet": _classifier(AlexNet, 128),
    "overfeat": _classifier(OverFeat, 128, size=231),
    **{
        f"vgg{layers}": _classifier(functools.partial(Vgg, groups), 32 if layers > _VERY_DEEP else 64)
        for layers, groups in VGG_GROUPS.items()
    },
    "googlenet": _classifier(GoogLeNet, 128),
    "googlenet-2014": _classifier(functools.partial(GoogLeNet, norm=False), 128),
    "inception-v3": _classifier(InceptionV3, 64, size=299),
    **{f"resnet{depth}": _classifier(functools.partial(ResNet, depth), 64) for depth in RESNET_BLOCKS},
    **{
        f"densenet{layers}": _classifier(functools.partial(DenseNet, blocks), 64)
        for layers, blocks in DENSENET_BLOCKS.items()
    },
    "vit-b-16": _classifier(functools.partial(VisionTransformer, VIT_B_16), 64, optimizer=_adamw),
    "vit-l-16": _classifier(functools.partial(VisionTransformer, VIT_L_16), 64, optimizer=_adamw),
    "unet": _segmenter(),
    "gpt2": _gpt2("small", 8),
    "gpt2-medium": _gpt2("medium", 8),
    "gpt2-large": _gpt2("large", 8),
    "gpt2-xl": _gpt2("xl", 8),
    "lstm": _language(LstmLanguageModel, 32, vocabulary=10_000, length=64, optimizer=_sgd),
    "big-lstm": _language(
        functools.partial(LstmLanguageModel, 793_471, 1024, 8192, projection=1024, dropout=0.1),
        128,
        vocabulary=793_471,
        length=20,
        optimizer=_adagrad,
    ),
    "gnmt": _translator(),
}
