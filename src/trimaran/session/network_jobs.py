"""The published networks as jobs on synthetic data: what a step of them needs and costs, before there are data.

Batch sizes are those that papers on memory and training time use. The networks of language are in `language_jobs.py`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.networks.alexnet import AlexNet
from trimaran.networks.alexnet_2012 import AlexNet2012
from trimaran.networks.densenet import DENSENET_BLOCKS, DenseNet
from trimaran.networks.googlenet import GoogLeNet
from trimaran.networks.inception_v3 import InceptionV3
from trimaran.networks.inception_v4 import InceptionV4
from trimaran.networks.lenet import LeNet
from trimaran.networks.overfeat import OverFeat
from trimaran.networks.resnet import RESNET_BLOCKS, BottleneckForm, ResNet
from trimaran.networks.unet import UNet
from trimaran.networks.vgg import VGG_GROUPS, Vgg
from trimaran.networks.vit import VIT_SIZES, VisionTransformer
from trimaran.session.language_jobs import LANGUAGE_JOBS, Maker
from trimaran.session.network_references import NetworkReference, parse_network
from trimaran.session.synthetic import Field, SyntheticPairs, image
from trimaran.session.synthetic_tasks import SyntheticTask, adamw, momentum

_CLASSES = 1000
_PIXELS = 224
_AUXILIARY_WEIGHT = 0.3  # of an auxiliary head's loss; Szegedy et al., CVPR 2015


def network_job(reference: str) -> Job:
    """A published network on synthetic data.

    Args:
        reference: one of those that `trimaran jobs` lists, with a size and options where it has them

    Returns:
        A job of 8,192 samples that are drawn when they are asked for; it makes nothing until it is used.

    Raises:
        InputError: no such network, size or option
    """
    asked = parse_network(reference)
    if asked is None:
        raise InputError(f'no network "{reference}"; `trimaran jobs` lists them', reference=reference)
    task = _NETWORKS[asked.name](asked)
    return Job(
        name=str(asked).replace(":", "-").replace("=", "-").replace(",", "-"),
        model=task.model,
        loss=task.loss,
        optimizer=task.optimizer,
        dataset=task.data,
        global_batch_size=task.batch,
        drop_last=True,
    )


def _classifier(
    model: Callable[..., nn.Module],
    batch: int,
    *,
    size: int = _PIXELS,
    channels: int = 3,
    classes: int = _CLASSES,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = momentum,
) -> Maker:
    def make(reference: NetworkReference) -> SyntheticTask:
        pixels = image(reference.number("image", size), channels)
        heads = reference.options.get("auxiliary") == "yes"
        return SyntheticTask(
            model=functools.partial(model, auxiliary=True) if heads else model,
            data=functools.partial(SyntheticPairs, pixels, target=Field(below=classes)),
            batch=batch,
            optimizer=optimizer,
            loss=auxiliary_loss if heads else functional.cross_entropy,
        )

    return make


def auxiliary_loss(scores: Any, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the main head, and that of the auxiliary ones at their weight.

    Args:
        scores: of the main head and of the others, each [batch, classes]; those of the main head alone in evaluation
        target: [batch]
    """
    main, *others = scores if isinstance(scores, tuple) else (scores,)
    loss = functional.cross_entropy(main, target)
    for other in others:
        loss = loss + _AUXILIARY_WEIGHT * functional.cross_entropy(other, target)
    return loss


def _resnet(depth: int, form: BottleneckForm | None = None, batch: int = 64) -> Maker:
    return _classifier(functools.partial(ResNet, depth, form=form), batch)


def _vision_transformer(reference: NetworkReference) -> SyntheticTask:
    # It has a position for each patch, so it is made for the images.
    pixels = reference.number("image", _PIXELS)
    size = VIT_SIZES[reference.name.removeprefix("vit-")]
    if pixels % size.patch:
        raise InputError(
            f"{reference}: images must divide into patches of {size.patch} pixels",
            code="network.image-not-divisible",
            image=pixels,
        )
    model = functools.partial(VisionTransformer, dataclasses.replace(size, image=pixels))
    return _classifier(model, 64, optimizer=adamw)(reference)


def _segmenter(reference: NetworkReference) -> SyntheticTask:
    size = reference.number("image", 512)
    data = functools.partial(SyntheticPairs, image(size), target=Field(shape=(size, size), below=2))
    return SyntheticTask(model=UNet, data=data, batch=8, optimizer=momentum, loss=functional.cross_entropy)


_VERY_DEEP = 100  # vDNN trains the VGG networks of more layers than this with batches of 32
_BATCH_NORM = (11, 13, 16, 19)  # VGG networks that are trained with batch norm too
_FIRST = BottleneckForm(first=True)
_RESNEXT = BottleneckForm(groups=32, group_width=4)
_TF_MAPS = (64, 192, 384, 384, 256)

_NETWORKS: Mapping[str, Maker] = {
    "lenet": _classifier(LeNet, 64, size=32, channels=1, classes=10),
    "alexnet": _classifier(AlexNet, 128),
    "alexnet-2012": _classifier(AlexNet2012, 128, size=227),
    "alexnet-ungrouped": _classifier(functools.partial(AlexNet2012, groups=1), 128, size=227),
    "alexnet-tf": _classifier(functools.partial(AlexNet, maps=_TF_MAPS, padding=0), 512, size=227),
    "overfeat": _classifier(OverFeat, 128, size=231),
    **{
        f"vgg{layers}": _classifier(functools.partial(Vgg, groups), 32 if layers > _VERY_DEEP else 64)
        for layers, groups in VGG_GROUPS.items()
    },
    **{
        f"vgg{layers}-bn": _classifier(functools.partial(Vgg, VGG_GROUPS[layers], norm=True), 64)
        for layers in _BATCH_NORM
    },
    "googlenet": _classifier(GoogLeNet, 128),
    "googlenet-2014": _classifier(functools.partial(GoogLeNet, norm=False), 128),
    "inception-v3": _classifier(InceptionV3, 64, size=299),
    "inception-v4": _classifier(InceptionV4, 64, size=299),
    **{f"resnet{depth}": _resnet(depth) for depth in RESNET_BLOCKS},
    **{f"resnet{depth}-v1": _resnet(depth, _FIRST) for depth in (50, 101, 152)},
    "resnet18-cifar": _classifier(functools.partial(ResNet, 18, classes=10, stem="small"), 128, size=32, classes=10),
    **{f"wide-resnet{depth}": _resnet(depth, BottleneckForm(group_width=128)) for depth in (50, 101)},
    **{f"resnext{depth}": _resnet(depth, _RESNEXT) for depth in (50, 101)},
    "resnext101-32x8d": _resnet(101, BottleneckForm(groups=32, group_width=8)),
    "resnext101-32x16d": _resnet(101, BottleneckForm(groups=32, group_width=16)),
    "resnext101-64x4d": _resnet(101, BottleneckForm(groups=64, group_width=4)),
    "se-resnext101-32x8d": _resnet(101, BottleneckForm(groups=32, group_width=8, squeeze=True)),
    "se-resnext101-64x4d": _resnet(101, BottleneckForm(groups=64, group_width=4, squeeze=True)),
    **{f"se-resnet{depth}": _resnet(depth, BottleneckForm(squeeze=True)) for depth in (18, 34, 50, 101, 152)},
    **{f"se-resnet{depth}-v1": _resnet(depth, BottleneckForm(squeeze=True, first=True)) for depth in (50, 101, 152)},
    **{
        f"se-resnext{depth}": _resnet(depth, BottleneckForm(groups=32, group_width=4, squeeze=True))
        for depth in (50, 101)
    },
    **{
        f"densenet{layers}": _classifier(functools.partial(DenseNet, blocks), 64)
        for layers, blocks in DENSENET_BLOCKS.items()
    },
    "densenet161": _classifier(functools.partial(DenseNet, (6, 12, 36, 24), width=1.5), 64),
    **{f"vit-{size}": _vision_transformer for size in VIT_SIZES},
    "unet": _segmenter,
    **LANGUAGE_JOBS,
}
