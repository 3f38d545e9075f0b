"""The five networks of the study, reduced, as jobs that train here. Jobs import torch when they are made.

The networks are reduced so that a processor runs many steps a second: they are the package's networks, narrower and on
smaller images. Every layer is there, so the number and order of gradients and the ratios of their sizes are those of
the full networks. The times are not.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimaran.base.errors import InputError
from trimaran.base.job import Job

if TYPE_CHECKING:
    from torch import nn


BATCH = 16
"""Samples of a device: the smallest of the study."""

_CLASSES = 10
_GLOBAL_BATCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedForm:
    """A network as it is trained here.

    Attributes:
        width: of its layers, as a share of the full network's
        pixels: height and width of an image
        channels: of an image
    """

    width: float
    pixels: int
    channels: int = 3

    @property
    def text(self) -> str:
        """For people.

        Example:
            >>> StudiedForm(width=0.25, pixels=64).text
            'width 1/4, 64 × 64 pixels'
        """
        width = "full width" if self.width == 1.0 else f"width 1/{round(1 / self.width)}"
        return f"{width}, {self.pixels} × {self.pixels} pixels"


STUDIED_FORMS = {
    "lenet": StudiedForm(width=1.0, pixels=32, channels=1),
    "alexnet": StudiedForm(width=0.125, pixels=96),
    "googlenet": StudiedForm(width=0.25, pixels=64),
    "inception_v3": StudiedForm(width=0.125, pixels=75),
    "resnet50": StudiedForm(width=0.125, pixels=64),
}
"""The networks by name; LeNet is as published."""


def studied_job(name: str, *, devices: int) -> Job:
    """The job of one of them; the same in every process.

    Args:
        name: of `STUDIED_FORMS`
        devices: ranks, each with `BATCH` samples

    Raises:
        InputError: another name
    """
    import torch
    from torch.nn import functional
    from torch.utils.data import TensorDataset

    form = STUDIED_FORMS.get(name)
    if form is None:
        raise InputError(f'"{name}" is not measured here; there are {", ".join(STUDIED_FORMS)}', network=name)
    batch = BATCH * devices

    def images() -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        shape = (_GLOBAL_BATCHES * batch, form.channels, form.pixels, form.pixels)
        return TensorDataset(
            torch.randn(shape, generator=generator), torch.randint(_CLASSES, shape[:1], generator=generator)
        )

    return Job(
        name=name,
        model=_models()[name],
        loss=functional.cross_entropy,
        optimizer=functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        dataset=images,
        global_batch_size=batch,
        drop_last=True,
    )


def _models() -> dict[str, "Callable[[], nn.Module]"]:
    from trimaran.networks.alexnet_overfeat_vgg import AlexNet
    from trimaran.networks.googlenet_inception import GoogLeNet, InceptionV3
    from trimaran.networks.resnet import ResNet
    from trimaran.networks.small_images import LeNet

    width = {name: form.width for name, form in STUDIED_FORMS.items()}
    return {
        "lenet": LeNet,
        "alexnet": lambda: AlexNet(_CLASSES, width=width["alexnet"]),
        "googlenet": lambda: GoogLeNet(classes=_CLASSES, width=width["googlenet"]),
        "inception_v3": lambda: InceptionV3(classes=_CLASSES, width=width["inception_v3"]),
        "resnet50": lambda: ResNet(50, classes=_CLASSES, width=width["resnet50"]),
    }
